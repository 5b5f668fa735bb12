"""Durable state of a job: checkpoints, manifests and policy folders."""
