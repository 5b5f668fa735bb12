"""What the main job needs, on a release: made here, imported and probed there, the rest pushed as artifacts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from longshore_cli.artifacts import push
from longshore_cli.connect import Start, Target, connected
from longshore_cli.demo.config import CLUSTER_SPEC, DemoConfig, examples_root, load_spec, size_spec, write_config
from longshore_cli.demo.prepare import prepare
from longshore_cli.demo.progress import Progress, Stage
from longshore_cli.demo.stages import Markers
from longshore_cli.local.home import Home
from longshore_cli.report.render import write_atomic

_PROBES = 8
"""At a time: most of a probe is the start of two pods."""


@dataclass(frozen=True)
class Prepared:
    """What is on the release now. spec: the file to submit; artifacts: digests by name."""

    dataset: str
    spec: Path
    artifacts: dict[str, str]
    changed: bool
    """Whether an artifact was pushed now that was not there."""


async def prepare_release(home: Home, config: DemoConfig) -> Prepared:
    """Prepares the release that the home is connected to; what is done already is kept.

    Raises:
        CliError: not connected, a tool failed, or a task of ours is rejected or flaky.
        LongshoreError: what a service raised.
    """
    from longshore.catalog.v1 import catalog_pb2_grpc
    from longshore.controller.v1 import controller_pb2_grpc

    root = examples_root()
    spec = load_spec(root / CLUSTER_SPEC)
    progress = Progress(_stages(config))
    names = ["task-catalog", "controller"]
    async with connected(Target(home.path, None), names, start=Start.NEVER) as channels, progress.live():
        write_config(home, config)
        catalog = catalog_pb2_grpc.CatalogServiceStub(channels["task-catalog"])
        await prepare(home, root, config, spec, catalog, Markers(home), progress, _PROBES)
        controller = controller_pb2_grpc.ControllerServiceStub(channels["controller"])
        artifacts, changed = await _push(controller, home, spec, progress)
    return Prepared(spec["tasks"]["dataset"], _spec_file(home, root, spec, config), artifacts, changed)


def _stages(config: DemoConfig) -> list[Stage]:
    """With what they take on a one-node cluster of two cores."""
    tasks = 25 * sum(config.contents.values())
    return [Stage("tasks", 5), Stage("model", 12), Stage("probe", 1.2 * tasks), Stage("push", 3)]


async def _push(controller: Any, home: Home, spec: dict[str, Any], progress: Progress) -> tuple[dict[str, str], bool]:
    """Under the names that the spec has for them."""
    progress.begin("push", "pushing the model and the demonstrations")
    digests, changed = {}, False
    for local, name in (
        (home.path / "model", spec["model"]["path"]),
        (home.path / "demonstrations.jsonl", spec["warm_start"]["demonstrations"]),
    ):
        pushed = await push(controller, local, name)
        digests[name] = pushed.artifact.digest
        changed = changed or pushed.changed
        progress.say("push", f"{name} {'pushed' if pushed.changed else 'kept'}")
    progress.end("push", f"{len(digests)} artifacts")
    return digests, changed


def _spec_file(home: Home, root: Path, spec: dict[str, Any], config: DemoConfig) -> Path:
    """The example itself, or what this config makes of it."""
    sized = size_spec(spec, config)
    if sized == spec:
        return root / CLUSTER_SPEC
    file = home.path / "run.yaml"
    write_atomic(file, yaml.safe_dump(sized, sort_keys=False))
    return file
