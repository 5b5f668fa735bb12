"""What a sandbox, an image, a lease and an exec are, and the rules for them. Pure: no gRPC, SQL, clock or environment."""
