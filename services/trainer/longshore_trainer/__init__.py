"""The trainer of Longshore: one DeepSpeed job per run. It takes sealed groups, updates the policy, writes checkpoints and publishes versions."""
