"""Other services over gRPC and the trainer's job launcher, behind the ports of domain.ports."""
