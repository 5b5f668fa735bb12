"""Inference gateway: the model endpoint, token capture, policy versions. Rooms: api, domain, store, clients."""
