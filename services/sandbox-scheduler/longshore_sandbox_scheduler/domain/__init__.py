"""What sandboxes, images, leases and execs are, and their rules. Pure: no gRPC, SQL, clock or environment."""
