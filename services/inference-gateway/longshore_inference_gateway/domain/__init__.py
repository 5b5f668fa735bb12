"""Rules of sessions, lineage, capture, policies and engines, over ports; no grpc, SQL, HTTP, clock or environment."""
