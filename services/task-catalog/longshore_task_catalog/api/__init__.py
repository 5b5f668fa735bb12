"""gRPC servicer and the mapping between protos and domain. No logic."""
