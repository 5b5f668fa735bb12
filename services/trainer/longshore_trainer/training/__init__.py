"""The two jobs of a trainer, warm start and policy optimisation, over the ports of engine, store and clients."""
