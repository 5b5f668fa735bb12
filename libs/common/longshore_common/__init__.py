"""What two services or more need: settings, logs, gRPC plumbing, errors, digests, storage. No domain, no torch."""
