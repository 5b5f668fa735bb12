"""gRPC servicer and the mapping between protos and the domain; no logic."""
