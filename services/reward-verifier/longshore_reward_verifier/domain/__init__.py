"""Reward rules, outcome decisions and the order of grading; no grpc, no clock, no environment."""
