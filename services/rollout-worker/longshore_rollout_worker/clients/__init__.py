"""Adapters to controller, scheduler, gateway (gRPC and HTTP), trajectory store, verifier and catalog."""
