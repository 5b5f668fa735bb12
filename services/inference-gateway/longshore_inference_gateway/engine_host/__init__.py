"""The process of an engine pod that runs vLLM on orders of the gateway."""
