"""Algorithms and their configuration: pure functions over arrays. No grpc, files, clock or environment."""
