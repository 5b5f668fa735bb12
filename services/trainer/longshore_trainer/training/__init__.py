"""The two jobs of a trainer, supervised warm start and policy optimisation, over the ports of engine, store and clients."""
