"""gRPC servicers: proto to domain and back, no logic."""
