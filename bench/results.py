"""What a benchmark found: a table on stdout and bench/out/<name>.json."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

OUT = Path(__file__).parent / "out"


def median(values: Sequence[float]) -> float:
    """The middle one; machines here are noisy."""
    return statistics.median(values)


@dataclass
class Results:
    """Metrics by name. A metric that was never set fails the run, so name all of them first."""

    name: str
    expected: tuple[str, ...]
    metrics: dict[str, dict[str, object]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def at_most(self, name: str, value: float, unit: str, target: float) -> None:
        """A metric that must not exceed its target."""
        self._set(name, value, unit, f"<= {target:g}", value <= target)

    def at_least(self, name: str, value: float, unit: str, target: float) -> None:
        """A metric that must reach its target."""
        self._set(name, value, unit, f">= {target:g}", value >= target)

    def shown(self, name: str, value: float, unit: str) -> None:
        """A metric without a target."""
        self._set(name, value, unit, "", True)

    def _set(self, name: str, value: float, unit: str, target: str, ok: bool) -> None:
        if name not in self.expected:
            raise ValueError(f"{name} is not one of {self.name}'s metrics")
        self.metrics[name] = {"value": round(value, 6), "unit": unit, "target": target, "ok": ok}

    def finish(self) -> int:
        """Prints, writes, and gives the exit status: 1 when a target was missed or a metric is missing."""
        missing = [name for name in self.expected if name not in self.metrics]
        for name in missing:
            self.metrics[name] = {"value": None, "unit": "", "target": "measured", "ok": False}
        width = max(len(name) for name in self.metrics)
        for name, metric in self.metrics.items():
            value = "missing" if metric["value"] is None else f"{metric['value']:.4g}"
            mark = "ok" if metric["ok"] else "MISSED"
            print(f"{name:<{width}}  {value:>10} {metric['unit']:<8} {metric['target']:<10} {mark}")
        for note in self.notes:
            print(f"  {note}")
        OUT.mkdir(parents=True, exist_ok=True)
        path = OUT / f"{self.name}.json"
        path.write_text(json.dumps({"metrics": self.metrics, "notes": self.notes}, indent=2) + "\n")
        print(f"wrote {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
        return 0 if all(metric["ok"] for metric in self.metrics.values()) else 1
