"""gRPC servicer and REST routes: translation between the wire and the application, no decisions."""
