"""One optimizer step and one policy update over an UpdateEngine: the only place where gradients are made."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longshore_common.errors import Internal
from longshore_trainer.domain.aggregation import attempt_token_weights
from longshore_trainer.domain.batch import Example, attempt_tokens
from longshore_trainer.domain.hyperparameters import Hyperparameters, PolicyHyperparameters
from longshore_trainer.domain.objective import METRIC_NAMES, TokenBatch, objective
from longshore_trainer.domain.partition import micro_batches, minibatches
from longshore_trainer.domain.vocabulary import Aggregation
from longshore_trainer.engine.base import UpdateEngine, collate
from longshore_trainer.engine.ranks import Ranks
from longshore_trainer.training.stopwatch import Stopwatch

_UPDATE_METRICS = (
    *("loss", "entropy", "kl", "mismatch_kl", "mismatch_kl_max", "grad_norm", "tokens"),
    *("clip_fraction", "clip_fraction_high", "clip_fraction_low"),
)
"""What `policy_update` gives."""


@dataclass(frozen=True)
class StepResult:
    """Of one optimizer step, over all ranks."""

    sums: dict[str, float]
    """METRIC_NAMES."""
    grad_norm: float
    mismatch_max: float
    """Of the worst token."""


def optimizer_step(
    engine: UpdateEngine,
    examples: Sequence[Example],
    references: Sequence[NDArray[np.float32]] | None,
    hp: Hyperparameters,
    ranks: Ranks,
    learning_rate: float,
    watch: Stopwatch,
) -> StepResult:
    """One step over the examples of one minibatch; every rank passes all of them and works on its share.

    `references` holds the reference log-probabilities of each example's trained tokens.
    Raises Internal when loss or gradient is not finite; the weights are then not to be kept.
    """
    norm_length = hp.norm_length if isinstance(hp, PolicyHyperparameters) else 1
    weights_A = attempt_token_weights(attempt_tokens(examples), Aggregation(hp.aggregation), norm_length)
    share = micro_batches([e.length for e in examples], ranks.size, hp.micro_batch_tokens)[ranks.rank]
    totals, worst = torch.zeros(len(METRIC_NAMES), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for index, chosen in enumerate(share):
        part = [examples[i] for i in chosen]
        with watch.timed("forward"):
            outputs = engine.forward(collate(part))
            tokens = _token_batch(part, None if references is None else [references[i] for i in chosen], weights_A)
            loss, sums, mismatch = objective(outputs.logprobs_N, outputs.entropy_N, tokens, hp)
            totals += sums
            worst = torch.maximum(worst, mismatch)
            _require_finite(float(loss.detach()), "loss")
        with watch.timed("backward"):
            engine.backward(loss, last=index == len(share) - 1)
    with watch.timed("optimizer"):
        grad_norm = engine.step(learning_rate)
    _require_finite(grad_norm, "gradient norm")
    sums_of_all = dict(zip(METRIC_NAMES, ranks.sum(totals).tolist(), strict=True))
    return StepResult(sums_of_all, grad_norm, float(ranks.max(worst)))


def policy_update(
    engine: UpdateEngine,
    examples: Sequence[Example],
    hp: PolicyHyperparameters,
    ranks: Ranks,
    learning_rate: float,
    seed: Sequence[int],
    watch: Stopwatch,
) -> dict[str, float]:
    """Epochs of minibatches over one step's examples; returns its metrics (means over trained tokens of all passes).

    `seed` fixes the minibatches. The mismatches are those of the first minibatch, before any update.
    """
    if not examples:
        return dict.fromkeys(_UPDATE_METRICS, 0.0)
    references = None
    if hp.kl_coefficient > 0:
        with watch.timed("reference"):
            references = reference_logprobs(engine, examples, hp, ranks)
    rng = np.random.default_rng(list(seed))
    attempts = 1 + max(example.attempt for example in examples)
    results: list[StepResult] = []
    for _ in range(hp.epochs):
        for chosen in minibatches(attempts, hp.minibatch_size, rng):
            members = set(chosen)
            picked = [index for index, example in enumerate(examples) if example.attempt in members]
            picked_references = None if references is None else [references[index] for index in picked]
            part = [examples[index] for index in picked]
            results.append(optimizer_step(engine, part, picked_references, hp, ranks, learning_rate, watch))
    return _metrics(results, sum(example.trained_tokens for example in examples))


def reference_logprobs(
    engine: UpdateEngine, examples: Sequence[Example], hp: PolicyHyperparameters, ranks: Ranks
) -> list[NDArray[np.float32]]:
    """Log-probabilities of every example's trained tokens under the run's starting policy. Each rank computes all."""
    with torch.no_grad(), engine.reference():
        return token_logprobs(engine, examples, hp.micro_batch_tokens)


def token_logprobs(engine: UpdateEngine, examples: Sequence[Example], max_tokens: int) -> list[NDArray[np.float32]]:
    """Log-probabilities of every example's trained tokens, without gradient."""
    result: list[NDArray[np.float32]] = [np.zeros(0, dtype=np.float32)] * len(examples)
    for chosen in micro_batches([e.length for e in examples], 1, max_tokens)[0]:
        part = [examples[index] for index in chosen]
        logprobs_N = engine.forward(collate(part)).logprobs_N.numpy()
        cuts = np.cumsum([example.trained_tokens for example in part])[:-1]
        for index, values in zip(chosen, np.split(logprobs_N, cuts), strict=True):
            result[index] = values
    return result


def _token_batch(
    examples: Sequence[Example], references: Sequence[NDArray[np.float32]] | None, weights_A: NDArray[np.float64]
) -> TokenBatch:
    masks = [example.loss_mask_T for example in examples]
    behaviour = [example.behaviour_T[mask] for example, mask in zip(examples, masks, strict=True)]
    advantages = [example.advantages_T[mask] for example, mask in zip(examples, masks, strict=True)]
    weights = [np.full(example.trained_tokens, weights_A[example.attempt], np.float32) for example in examples]
    behaviour_N = _flat(behaviour)
    reference_N = torch.full_like(behaviour_N, math.nan) if references is None else _flat(references)
    return TokenBatch(behaviour_N, _flat(advantages), _flat(weights), reference_N)


def _flat(arrays: Sequence[NDArray[np.float32]]) -> Tensor:
    return torch.from_numpy(np.concatenate([np.zeros(0, np.float32), *arrays]).astype(np.float32))


def _require_finite(value: float, what: str) -> None:
    if not math.isfinite(value):
        raise Internal(f"the {what} is {value}: the step is not applied; lower learning_rate or look at the batch")


def _metrics(results: Sequence[StepResult], tokens: int) -> dict[str, float]:
    passes = sum(result.sums["tokens"] for result in results)
    first = results[0].sums

    def mean(name: str) -> float:
        return sum(result.sums[name] for result in results) / passes

    return {
        "loss": float(np.mean([result.sums["loss"] for result in results])),
        "entropy": mean("entropy"),
        "kl": mean("kl"),
        "clip_fraction": mean("clipped_high") + mean("clipped_low"),
        "clip_fraction_high": mean("clipped_high"),
        "clip_fraction_low": mean("clipped_low"),
        "mismatch_kl": first["mismatch"] / first["tokens"],
        "mismatch_kl_max": results[0].mismatch_max,
        "grad_norm": float(np.mean([result.grad_norm for result in results])),
        "tokens": float(tokens),
    }
