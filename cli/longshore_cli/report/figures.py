"""The report's figures: which series each shows, and what it says beneath its title."""

from __future__ import annotations

import math
from typing import Any

from longshore_cli.report import charts

Json = dict[str, Any]

STEP_PARTS = ("rollout", "train", "checkpoint", "publish", "other")


def _list(value: Json, key: str) -> list[Any]:
    found = value.get(key)
    return list(found) if isinstance(found, list | tuple) else []


def _dict(value: Json, key: str) -> Json:
    found = value.get(key)
    return dict(found) if isinstance(found, dict) else {}


def _points(steps: list[Any], key: str) -> list[tuple[float, float]]:
    return [
        (float(s["step"]), float(s[key]))
        for s in steps
        if s.get(key) is not None and s.get("step") is not None and math.isfinite(float(s[key]))
    ]


def _figure(title: str, note: str, svg: str, legend: list[tuple[str, int]] | None = None) -> Json:
    return {"title": title, "note": note, "svg": svg, "legend": legend or []}


_ZERO_BASED = charts.Axes(y_min=0.0)
_RATE = charts.Axes(y_format=charts.percent, y_min=0.0, y_max=1.0)

# title, what it says, key of a step, axes
_STABILITY: tuple[tuple[str, str, str, charts.Axes], ...] = (
    (
        "Mismatch KL, trainer against sampler",
        "How far the engine's logprobs are from the trainer's for the same tokens; should stay near zero.",
        "mismatch_kl",
        _ZERO_BASED,
    ),
    ("Entropy of sampled tokens", "Nats per token; a fall to zero is a collapse.", "entropy", _ZERO_BASED),
    ("KL to the starting policy", "", "kl", _ZERO_BASED),
    (
        "Clip fraction",
        "Share of tokens whose ratio the loss clipped.",
        "clip_fraction",
        charts.Axes(y_format=charts.percent_fine, y_min=0.0),
    ),
    (
        "Groups without variance",
        "All attempts got the same reward, so nothing is learnt from them.",
        "zero_variance_groups",
        _ZERO_BASED,
    ),
)


def figures(report: Json) -> list[Json]:
    """All figures, in order; one whose `svg` is empty has no data."""
    steps = _list(report, "steps")
    dev = charts.Series("dev", _points(_list(report, "dev_curve"), "rate"), 1)
    dev_note = "Informs the gate; never the verdict."
    drawn = [
        _learning(steps),
        _figure("Dev split, interim evaluation", dev_note, charts.line_chart("Dev solve rate", [dev], _RATE)),
        _step_time(steps),
    ]
    for title, note, key, axes in _STABILITY:
        series = charts.Series(title, _points(steps, key), 1)
        drawn.append(_figure(title, note, charts.line_chart(title, [series], axes)))
    return drawn


def _learning(steps: list[Any]) -> Json:
    solve, reward = _points(steps, "solve_rate"), _points(steps, "reward_mean")
    title = "Training attempts solved, per step"
    if solve == reward:
        note = "Solve rate and mean reward are equal here: rewards are 0 or 1."
        return _figure(title, note, charts.line_chart(title, [charts.Series("solve rate", solve, 1)], _RATE))
    both = [charts.Series("solve rate", solve, 1), charts.Series("mean reward", reward, 2)]
    low = min((y for _, y in reward), default=0.0)
    high = max((y for _, y in reward), default=1.0)
    axes = charts.Axes(y_min=min(0.0, low), y_max=max(1.0, high))
    return _figure(title, "", charts.line_chart(title, both, axes), [(s.name, s.slot) for s in both])


def step_seconds(step: Json) -> dict[str, float]:
    """Seconds of one step by the parts that the chart names, as the trainer saw them: they add up to its step.

    "rollout" is how long the trainer waited for its batch; verification is inside it, and attempts overlap, so the sum
    of verifier seconds is no part of this.
    """
    found = {k: float(v) for k, v in _dict(step, "seconds").items() if v is not None}
    rollout, waited = found.pop("rollout", 0.0), found.pop("wait_for_batch", None)
    found.pop("verify", None)
    parts = {name: found.pop(name, 0.0) for name in STEP_PARTS[1:-1]}
    return {"rollout": rollout if waited is None else waited, **parts, "other": sum(found.values())}


def _step_time(steps: list[Any]) -> Json:
    bars = [charts.Bar(f"{s.get('step', i + 1):g}", step_seconds(s)) for i, s in enumerate(steps)]
    used = [p for p in STEP_PARTS if any(b.parts.get(p, 0.0) > 0 for b in bars)]
    svg = charts.stacked_bars("Time per step", bars, used, charts.Axes(y_format=charts.seconds))
    verify = [float(_dict(s, "seconds").get("verify") or 0.0) for s in steps]
    note = "Rollout is what the trainer waited for; verification is part of it"
    note += f", {sum(verify) / len(verify):.1f} s a step summed over attempts that overlap." if any(verify) else "."
    return _figure("Time per step", note, svg, [(p, i) for i, p in enumerate(used, start=1)])
