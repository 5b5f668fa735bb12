"""What a demo home was made for, and the run spec that it submits."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

import longshore_cli
from longshore_cli.errors import CliError
from longshore_cli.local.home import Home
from longshore_cli.report.render import write_atomic

SPEC = Path("examples/runs/demo-grpo.yaml")
CLUSTER_SPEC = Path("examples/runs/cluster-grpo.yaml")
GENERATOR = Path("examples/tasks/generate.py")
VOCABULARY = 500
RIGHT_SHARE = 0.3
"""Share of right commands in the demonstrations."""


@dataclass(frozen=True)
class DemoConfig:
    """Fixed when a home is made; another one needs another home."""

    seed: int
    steps: int | None
    """Training steps; None: as the spec says."""
    quick: bool
    """Few tasks and steps: shows that everything works, not that it learns."""
    cluster: bool = False
    """For a release: fewer tasks, since each is probed in two pods of its own."""

    @property
    def contents(self) -> dict[str, int]:
        """Tasks per skill and split."""
        small = self.quick or self.cluster
        return {"train": 1, "dev": 1, "test": 2} if small else {"train": 6, "dev": 1, "test": 4}

    @property
    def demonstrations(self) -> int:
        """Lines of the warm start's file."""
        return 300 if self.quick else 1500


def examples_root() -> Path:
    """The folder that holds examples/: the working folder, else the source tree of this package.

    Raises:
        CliError: neither does.
    """
    for root in (Path.cwd(), Path(longshore_cli.__file__).resolve().parents[2]):
        if (root / GENERATOR).is_file() and (root / SPEC).is_file():
            return root
    raise CliError(f"the demo needs {GENERATOR} and {SPEC}: run it in a clone of the repository")


def settle_config(home: Home, seed: int | None, steps: int | None, quick: bool, *, cluster: bool = False) -> DemoConfig:
    """The home's own config, or a new one.

    Raises:
        CliError: the home was made with other arguments.
    """
    found = read_config(home)
    if found is None:
        return DemoConfig(seed if seed is not None else 1, steps, quick, cluster)
    wanted = DemoConfig(
        found.seed if seed is None else seed, found.steps if steps is None else steps, quick or found.quick, cluster
    )
    if wanted != found:
        over = f"remove {_config_file(home)}" if cluster else "add --fresh"
        raise CliError(
            f"{home.path} was made with {_words(found)}, now it is {_words(wanted)}: {over} to start over, "
            "or choose another --home"
        )
    return found


def _words(config: DemoConfig) -> str:
    steps = f", {config.steps} steps" if config.steps is not None else ""
    return f"seed {config.seed}{steps}{', --quick' if config.quick else ''}{', --cluster' if config.cluster else ''}"


def _config_file(home: Home) -> Path:
    return home.path / "demo.json"


def read_config(home: Home) -> DemoConfig | None:
    """What the home was made for; None when no demo ran there."""
    try:
        return DemoConfig(**json.loads(_config_file(home).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def write_config(home: Home, config: DemoConfig) -> None:
    """Fixes the home's config."""
    home.path.mkdir(parents=True, exist_ok=True)
    write_atomic(_config_file(home), json.dumps(asdict(config)) + "\n")


def load_spec(file: Path) -> dict[str, Any]:
    """An example spec as a value."""
    value = yaml.safe_load(file.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise CliError(f"{file} is not a run spec: it must be a mapping")
    return value


def fill_spec(spec: dict[str, Any], home: Home, config: DemoConfig) -> dict[str, Any]:
    """The example spec for this home: its paths, seed and steps; with --quick a small one."""
    filled = size_spec(spec, config)
    filled["model"] = {**filled.get("model", {}), "path": str(home.path / "model")}
    if filled.get("warm_start"):
        filled["warm_start"]["demonstrations"] = str(home.path / "demonstrations.jsonl")
    return filled


def size_spec(spec: dict[str, Any], config: DemoConfig) -> dict[str, Any]:
    """The example spec with this seed and these steps; with --quick a small one."""
    sized: dict[str, Any] = json.loads(json.dumps(spec))
    sized["seed"] = config.seed
    if config.quick:
        _shrink(sized)
    if config.steps is not None:
        sized["algorithm"]["steps"] = config.steps
    return sized


def _shrink(spec: dict[str, Any]) -> None:
    spec["algorithm"]["steps"] = 2
    spec["rollout"]["groups_per_step"] = 4
    spec["evaluation"] = {**spec.get("evaluation", {}), "dev_every": 2}
    if spec.get("warm_start"):
        overrides = spec["warm_start"].get("overrides") or {}
        spec["warm_start"]["overrides"] = {**overrides, "phases": [{"steps": 60, "batch_size": 16}]}
