"""Other services: scheduler, in-sandbox agent, verifier."""
