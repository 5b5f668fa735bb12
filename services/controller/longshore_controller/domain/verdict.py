"""From a comparison to one word, and the rule that decided it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from longshore_controller.domain.evaluation import Comparison, exact_p
from longshore_controller.domain.vocabulary import Verdict

ALPHA = 0.05
MIN_TASKS = 6
"""With fewer, even a win on every task has p >= 0.05."""
MAX_ABSENT_SHARE = 0.2
"""With more attempts without a reward, on either side, the panel speaks of the machine, not of the policy."""
EQUIVALENCE_MARGIN = 0.1
"""Only an interval within this on both sides of zero is called no difference; a wider one leaves the question open."""
NOTE = (
    "Decided by the paired evaluation on the test split only. Training reward, loss and the dev curve are not evidence."
)


class Decision(BaseModel):
    """The verdict with its grounds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    verdict: Verdict
    rule: str
    """The rule that fired, with its numbers."""
    note: str = NOTE


def decide(comparison: Comparison | None) -> Decision:
    """improved and worse need p < 0.05 in that direction; see the constants for what is left open."""
    if comparison is None or comparison.n == 0:
        return Decision(verdict=Verdict.INCONCLUSIVE, rule="no task was evaluated under both policies")
    unfit = _unfit(comparison)
    if unfit:
        return Decision(verdict=Verdict.INCONCLUSIVE, rule=unfit)
    if comparison.p_value < ALPHA:
        return _directed(comparison)
    low, high = comparison.interval
    numbers = (
        f"p = {comparison.p_value:.3g} >= {ALPHA}, difference {comparison.difference:+.3f} [{low:+.3f}, {high:+.3f}]"
    )
    if low >= -EQUIVALENCE_MARGIN and high <= EQUIVALENCE_MARGIN:
        return Decision(verdict=Verdict.NO_DIFFERENCE, rule=f"{numbers} lies within ±{EQUIVALENCE_MARGIN}")
    return Decision(
        verdict=Verdict.INCONCLUSIVE, rule=f"{numbers} still allows more than ±{EQUIVALENCE_MARGIN}: use more tasks"
    )


def _unfit(comparison: Comparison) -> str:
    if comparison.n < MIN_TASKS:
        best = exact_p(comparison.n, 0)
        return f"{comparison.n} tasks cannot decide (a win on all would have p = {best:.3g}); use at least {MIN_TASKS}"
    for name, side in (("base", comparison.base), ("final", comparison.final)):
        if side.absent > MAX_ABSENT_SHARE * side.attempts:
            return (
                f"{side.absent} of {side.attempts} attempts of the {name} policy have no reward "
                f"(more than {MAX_ABSENT_SHARE:.0%}): see their failures"
            )
    return ""


def _directed(comparison: Comparison) -> Decision:
    wins, losses = comparison.wins, comparison.losses
    verdict = Verdict.IMPROVED if wins > losses else Verdict.WORSE
    counts = f"{wins} wins and {losses} losses of {comparison.n}"
    rule = f"{comparison.test} p = {comparison.p_value:.3g} < {ALPHA} with {counts}"
    scored = comparison.wins_scored_only - comparison.losses_scored_only
    if (scored > 0) != (wins > losses) or scored == 0:
        return Decision(
            verdict=Verdict.INCONCLUSIVE,
            rule=f"{rule}, but not among the tasks with all rewards present "
            f"({comparison.wins_scored_only} wins, {comparison.losses_scored_only} losses): missing rewards decided",
        )
    return Decision(verdict=verdict, rule=rule)
