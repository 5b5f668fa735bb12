"""gRPC servicer of the trainer: proto <-> domain, no logic."""
