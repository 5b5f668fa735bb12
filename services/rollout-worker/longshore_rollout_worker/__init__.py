"""Leases attempts and runs each one: sandbox, gateway session, harness, verifier, seal."""
