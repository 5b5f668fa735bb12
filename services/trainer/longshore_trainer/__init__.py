"""The trainer: one DeepSpeed job per run takes sealed groups, updates the policy and publishes versions."""
