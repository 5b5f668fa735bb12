"""Rules about attempts, groups, turns, segments, batches and counts, and the store's port. Pure: no grpc, no SQL."""
