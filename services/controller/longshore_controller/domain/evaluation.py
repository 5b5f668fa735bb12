"""Two pinned policies on the same tasks with the same seeds: per-task pairs, exact tests, intervals, costs.

A task is **solved** by an attempt whose reward is at least 1.0. An absent reward counts as unsolved in the headline;
the scored-only figure stands beside it. Training reward plays no part here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import BaseModel, ConfigDict
from scipy.special import bdtr

SOLVED_REWARD = 1.0
BOOTSTRAP_RESAMPLES = 10_000
_CHUNK = 500


@dataclass(frozen=True)
class AttemptResult:
    """One evaluation attempt."""

    task_digest: str
    index: int
    """Sample number; the same index has the same seed in both panels."""
    reward: float | None
    """None: failed, no reward."""
    ending: str
    """Termination of a scored attempt, failure of a failed one."""
    turns: int
    prompt_tokens: int
    completion_tokens: int
    agent_s: float
    verifier_s: float

    @property
    def solved(self) -> bool:
        """Reward of at least 1.0."""
        return self.reward is not None and self.reward >= SOLVED_REWARD


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Side(_Model):
    """One policy on one panel."""

    attempts: int
    solved: int
    """Solved attempts."""
    rate: float
    """solved / attempts: absent rewards count as unsolved."""
    scored: int
    scored_rate: float | None
    """solved / scored; null when nothing was scored."""
    absent: int
    """Attempts without a reward."""
    endings: dict[str, int]
    """Terminations of the scored and failures of the others."""
    pass_at_k: dict[str, float]
    """Unbiased estimate, mean over tasks; keys "1", ..., samples."""
    prompt_tokens: int
    completion_tokens: int
    turns_mean: float
    agent_s: float
    """Sum of wall seconds of the agents."""
    verifier_s: float
    top_task_share: float | None
    """Share of the most frequent task among the successes."""


class Comparison(_Model):
    """A panel: both sides, paired by task."""

    name: str
    n: int
    """Tasks that both sides attempted."""
    samples: int
    base: Side
    final: Side
    wins: int
    """Tasks that the final policy solved more often."""
    ties: int
    losses: int
    test: str
    """"mcnemar_exact" for one sample, "sign_test" for more."""
    p_value: float
    mcnemar_p: float | None
    """Exact McNemar p, two-sided; null when there is more than one sample per task."""
    difference: float
    """Mean over tasks of final minus base solve rate."""
    interval: tuple[float, float]
    """Paired bootstrap over tasks, 95%."""
    bootstrap_resamples: int
    wins_scored_only: int
    """Wins among pairs in which every reward is present."""
    losses_scored_only: int
    tokens_ratio: float | None
    """Sampled tokens, final over base; null when base sampled none."""
    time_ratio: float | None
    """Agent seconds, final over base."""
    turns_ratio: float | None


def exact_p(wins: int, losses: int) -> float:
    """Two-sided exact binomial p of wins against losses: McNemar's for one sample, the sign test for more."""
    # At one half the binomial is symmetric: twice the smaller tail. scipy.stats would take seconds to import.
    return min(1.0, 2.0 * float(bdtr(min(wins, losses), wins + losses, 0.5)))


def pass_at_k(samples: int, solved: int, k: int) -> float:
    """Unbiased estimate of P(at least one of k attempts solves), from `solved` of `samples`; needs k <= samples."""
    return 1.0 - math.comb(samples - solved, k) / math.comb(samples, k)


def bootstrap_interval(differences: Sequence[float], seed: int) -> tuple[float, float]:
    """95% percentile interval of the mean, resampling tasks; (0, 0) without tasks."""
    values = np.asarray(differences, dtype=np.float64)
    if values.size == 0:
        return (0.0, 0.0)
    rng = np.random.default_rng(seed)
    chunks = [
        values[rng.integers(0, values.size, size=(_CHUNK, values.size))].mean(axis=1)
        for _ in range(BOOTSTRAP_RESAMPLES // _CHUNK)
    ]
    low, high = np.quantile(np.concatenate(chunks), [0.025, 0.975])
    return (float(low), float(high))


def compare(name: str, base: Sequence[AttemptResult], final: Sequence[AttemptResult], seed: int) -> Comparison:
    """Pairs two panels by task. Tasks that only one side attempted count in its own figures only."""
    base_by, final_by = _by_task(base), _by_task(final)
    tasks = sorted(base_by.keys() & final_by.keys())
    signs = {task: _mean_solved(final_by[task]) - _mean_solved(base_by[task]) for task in tasks}
    whole = [task for task in tasks if all(r.reward is not None for r in (*base_by[task], *final_by[task]))]
    samples = max((len(rows) for rows in (*base_by.values(), *final_by.values())), default=1)
    wins, losses = _count(signs, tasks)
    wins_scored, losses_scored = _count(signs, whole)
    p_value = exact_p(wins, losses)
    base_side, final_side = side(base), side(final)
    return Comparison(
        name=name,
        n=len(tasks),
        samples=samples,
        base=base_side,
        final=final_side,
        wins=wins,
        ties=len(tasks) - wins - losses,
        losses=losses,
        test="mcnemar_exact" if samples == 1 else "sign_test",
        p_value=p_value,
        mcnemar_p=p_value if samples == 1 else None,
        difference=float(np.mean(list(signs.values()))) if signs else 0.0,
        interval=bootstrap_interval([signs[task] for task in tasks], seed),
        bootstrap_resamples=BOOTSTRAP_RESAMPLES,
        wins_scored_only=wins_scored,
        losses_scored_only=losses_scored,
        tokens_ratio=_ratio(final_side.completion_tokens, base_side.completion_tokens),
        time_ratio=_ratio(final_side.agent_s, base_side.agent_s),
        turns_ratio=_ratio(final_side.turns_mean, base_side.turns_mean),
    )


def side(results: Sequence[AttemptResult]) -> Side:
    """One policy's figures."""
    by_task = _by_task(results)
    solved = [r for r in results if r.solved]
    scored = [r for r in results if r.reward is not None]
    top = Counter(r.task_digest for r in solved).most_common(1)
    return Side(
        attempts=len(results),
        solved=len(solved),
        rate=len(solved) / len(results) if results else 0.0,
        scored=len(scored),
        scored_rate=len(solved) / len(scored) if scored else None,
        absent=len(results) - len(scored),
        endings=dict(Counter(r.ending for r in results)),
        pass_at_k=_pass_curve(by_task),
        prompt_tokens=sum(r.prompt_tokens for r in results),
        completion_tokens=sum(r.completion_tokens for r in results),
        turns_mean=sum(r.turns for r in results) / len(results) if results else 0.0,
        agent_s=sum(r.agent_s for r in results),
        verifier_s=sum(r.verifier_s for r in results),
        top_task_share=top[0][1] / len(solved) if top else None,
    )


def _pass_curve(by_task: Mapping[str, list[AttemptResult]]) -> dict[str, float]:
    smallest = min((len(rows) for rows in by_task.values()), default=0)
    counts = [(len(rows), sum(r.solved for r in rows)) for rows in by_task.values()]
    return {str(k): sum(pass_at_k(n, c, k) for n, c in counts) / len(counts) for k in range(1, smallest + 1)}


def _by_task(results: Sequence[AttemptResult]) -> dict[str, list[AttemptResult]]:
    grouped: dict[str, list[AttemptResult]] = {}
    for result in results:
        grouped.setdefault(result.task_digest, []).append(result)
    return grouped


def _mean_solved(rows: Sequence[AttemptResult]) -> float:
    return sum(r.solved for r in rows) / len(rows)


def _count(signs: Mapping[str, float], tasks: Sequence[str]) -> tuple[int, int]:
    return sum(signs[t] > 0 for t in tasks), sum(signs[t] < 0 for t in tasks)


def _ratio(final: float, base: float) -> float | None:
    return final / base if base > 0 else None
