"""Lives of attempts and leases, harness conversations, failure names; no grpc, http, clock or environment."""
