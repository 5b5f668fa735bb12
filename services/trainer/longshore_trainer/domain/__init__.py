"""Algorithms and their configuration: pure functions over explicit arrays. No grpc, no files, no clock, no environment."""
