"""Adapters to the catalog, the sandbox scheduler and the agent inside a sandbox."""
