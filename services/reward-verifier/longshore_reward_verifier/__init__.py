"""Runs a task's tests against the state an agent left, and says where the reward came from."""
