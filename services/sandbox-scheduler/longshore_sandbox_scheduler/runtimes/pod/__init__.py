"""Sandboxes as pods of a Kubernetes cluster."""
