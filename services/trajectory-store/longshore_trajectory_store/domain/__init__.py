"""Rules about attempts, groups, turns, segments, batches and counts. Pure: no grpc, SQL, clock or environment."""
