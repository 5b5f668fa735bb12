"""A release on a cluster, reached from here by kubectl."""
