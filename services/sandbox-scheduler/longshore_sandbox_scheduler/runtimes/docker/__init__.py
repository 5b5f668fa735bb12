"""Sandboxes in a Docker-compatible engine."""
