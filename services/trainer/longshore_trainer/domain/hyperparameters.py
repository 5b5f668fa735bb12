"""Hyper-parameters of a job: what a preset sets and a run may override. Light: imports neither torch nor numpy."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from longshore_trainer.domain.vocabulary import (
    AdvantageEstimator,
    Aggregation,
    KlEstimator,
    PolicyLoss,
    Precision,
    Schedule,
)

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Beta = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]


class OptimizerHyperparameters(BaseModel):
    """AdamW, its schedule, and how a batch is cut; shared by every preset."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learning_rate: Positive = 1e-5
    """Peak learning rate."""
    adam_beta1: Beta = 0.9
    adam_beta2: Beta = 0.999
    adam_epsilon: Positive = 1e-8
    weight_decay: NonNegative = 0.0
    """Decoupled; off by default because LoRA factors are already bounded by their rank."""
    grad_clip: NonNegative = 1.0
    """Global gradient norm at most; 0 switches clipping off."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps of linear warm-up from zero (optimizer steps for sft, training steps for rl)."""
    schedule: Schedule = Schedule.CONSTANT
    """Learning rate after warm-up."""
    micro_batch_tokens: Count = 16384
    """Padded tokens in one forward pass at most; bounds memory, never changes the gradient."""
    precision: Precision = Precision.FLOAT32
    """float32 keeps sampled and recomputed log-probabilities within 1e-4 of each other."""


class SftPhase(BaseModel):
    """A stretch of supervised training with one batch size."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: Count
    batch_size: Count


class SftHyperparameters(OptimizerHyperparameters):
    """Full-parameter supervised training on demonstrations."""

    phases: Annotated[tuple[SftPhase, ...], Field(min_length=1)] = (SftPhase(steps=300, batch_size=32),)
    """One after the other, under one learning-rate schedule."""
    aggregation: Aggregation = Aggregation.TOKEN_MEAN
    loss: PolicyLoss = PolicyLoss.CROSS_ENTROPY
    max_length: Count = 4096
    """Tokens of one demonstration at most; a longer one is refused, never cut."""
    bucket_batches: Count = 8
    """Batches that are sorted by length together: more means less padding and less mixing."""
    report_every: Count = 10
    """Optimizer steps between two progress reports."""
    checkpoint_every: Count = 100
    """Optimizer steps between two checkpoints."""

    @property
    def total_steps(self) -> int:
        """Optimizer steps over all phases."""
        return sum(phase.steps for phase in self.phases)


class PolicyHyperparameters(OptimizerHyperparameters):
    """Policy optimisation on groups of scored attempts."""

    advantage: AdvantageEstimator = AdvantageEstimator.GRPO
    advantage_std: bool = True
    """Divide by the group's standard deviation (grpo only); off gives Dr. GRPO's advantages."""
    negative_advantage_scale: NonNegative = 1.0
    """Factor on negative advantages after normalisation; below 1 it slows the collapse of small policies."""
    loss: PolicyLoss = PolicyLoss.PPO_CLIP
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: Positive = 0.2
    """The ratio is clipped above at 1 + clip_high."""
    dual_clip: Annotated[float, Field(gt=1)] | None = 3.0
    """Bound on the loss of a negative advantage, as a multiple of it; null switches it off."""
    kl_coefficient: NonNegative = 0.001
    """Weight of the KL to the run's starting policy, in the loss; 0 also skips the reference pass."""
    kl_estimator: KlEstimator = KlEstimator.K3
    entropy_coefficient: NonNegative = 0.0
    """Weight of an entropy bonus."""
    aggregation: Aggregation = Aggregation.TOKEN_MEAN
    norm_length: Count = 1024
    """The constant length of seq_mean_token_sum_norm, tokens."""
    epochs: Count = 1
    """Passes over a step's batch."""
    minibatch_size: Count = 64
    """Attempts per optimizer step, over all ranks."""
    temperature: Positive = 1.0
    """Sampling temperature of the attempts: the policy's logits are divided by it, as the sampler's were."""


Hyperparameters = SftHyperparameters | PolicyHyperparameters
