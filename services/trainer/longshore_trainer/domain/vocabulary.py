"""Closed vocabularies of the trainer. Every member of an algorithm's vocabulary has an entry in its registry."""

from enum import StrEnum


class JobKind(StrEnum):
    """What a job does."""

    SFT = "sft"
    """Supervised full-parameter warm start; its result is version 0."""
    RL = "rl"
    """Policy optimisation on sealed groups; step N makes version N."""


class AdvantageEstimator(StrEnum):
    """How rewards of a group become advantages."""

    GRPO = "grpo"
    """(r - mean) / (std + 1e-6) over the scored attempts, ddof 1; without `advantage_std` only centred (Dr. GRPO)."""
    RLOO = "rloo"
    """r - mean of the other scored attempts of the group."""


class PolicyLoss(StrEnum):
    """Per-token loss."""

    PPO_CLIP = "ppo_clip"
    """Clipped importance ratio with separate low and high range and dual clip."""
    CROSS_ENTROPY = "cross_entropy"
    """Negative log-likelihood, for supervised training."""


class KlEstimator(StrEnum):
    """Estimator of KL(policy || reference) at sampled tokens (Schulman's names)."""

    K1 = "k1"
    K2 = "k2"
    K3 = "k3"


class Aggregation(StrEnum):
    """How token losses of an optimizer step become one number; denominators span ranks and micro-batches."""

    TOKEN_MEAN = "token_mean"
    """Every trained token weighs the same."""
    SEQ_MEAN_TOKEN_MEAN = "seq_mean_token_mean"
    """Mean over an attempt's tokens, then mean over attempts."""
    SEQ_MEAN_TOKEN_SUM_NORM = "seq_mean_token_sum_norm"
    """Sum over an attempt's tokens divided by a constant length, then mean over attempts (Dr. GRPO)."""


class Schedule(StrEnum):
    """Learning rate after warm-up."""

    CONSTANT = "constant"
    LINEAR = "linear"
    """Linear decay to zero at the last step."""
    COSINE = "cosine"


class Precision(StrEnum):
    """Arithmetic of weights and activations."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    """Activations and matrix products in bfloat16 by autocast; weights and optimizer stay float32."""


class JobPhase(StrEnum):
    """What the trainer is doing, as Status reports it."""

    LOADING = "loading"
    WAITING_FOR_BATCH = "waiting_for_batch"
    TRAINING = "training"
    CHECKPOINTING = "checkpointing"
    PUBLISHING = "publishing"
    DONE = "done"
