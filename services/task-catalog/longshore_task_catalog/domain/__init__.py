"""Pure rules: task.toml, lint, digests, states, datasets, the order of a probe. No gRPC, SQL, clock or environment."""
