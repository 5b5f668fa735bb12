"""gRPC servicer of the worker itself (Status, Drain) and its metrics; no logic."""
