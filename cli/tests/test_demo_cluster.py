"""`longshore demo prepare --cluster`: by parts, and against real services that stand for a release."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import Result

from longshore.catalog.v1 import catalog_pb2
from longshore_cli.demo.cluster import _spec_file
from longshore_cli.demo.config import CLUSTER_SPEC, DemoConfig, load_spec, settle_config, write_config
from longshore_cli.demo.prepare import _probe
from longshore_cli.demo.progress import Progress, Stage
from longshore_cli.errors import CliError
from longshore_cli.local.home import Home
from longshore_controller.domain.artifacts import check_name
from longshore_controller.domain.spec_parsing import parse_spec

Cli = Callable[..., Result]
REPOSITORY = Path(__file__).parents[2]


def test_the_example_names_artifacts_and_parses() -> None:
    spec = parse_spec((REPOSITORY / CLUSTER_SPEC).read_text())
    assert spec.warm_start is not None
    for name in (spec.model.path, spec.warm_start.demonstrations):
        check_name(name)
    assert spec.tasks.dataset == "demo"


def test_the_spec_to_submit_is_the_example_unless_the_config_changes_it(tmp_path: Path) -> None:
    home, spec = Home(tmp_path), load_spec(REPOSITORY / CLUSTER_SPEC)
    assert _spec_file(home, REPOSITORY, spec, DemoConfig(1, None, False, True)) == REPOSITORY / CLUSTER_SPEC
    quick = _spec_file(home, REPOSITORY, spec, DemoConfig(5, None, True, True))
    written: Any = yaml.safe_load(quick.read_text())
    assert (written["seed"], written["algorithm"]["steps"], written["model"]) == (5, 2, spec["model"])


def test_a_home_prepared_otherwise_says_how_to_start_over(tmp_path: Path) -> None:
    home = Home(tmp_path)
    write_config(home, settle_config(home, None, None, True, cluster=True))
    assert settle_config(home, None, None, False, cluster=True).quick
    with pytest.raises(CliError, match=r"made with seed 1, --quick, --cluster, now it is seed 2.*: remove .*demo.json"):
        settle_config(home, 2, None, False, cluster=True)


def test_it_wants_a_connected_release(cli: Cli) -> None:
    result = cli("demo", "prepare")
    assert (result.exit_code, "add --cluster" in result.stderr) == (2, True)
    result = cli("demo", "prepare", "--cluster", "--home", "none")
    assert (result.exit_code, "nothing runs on" in result.stderr) == (2, True), result.stderr
    assert not Path("none/demo.json").exists()


class Catalog:
    """Probes: of each task the states to answer, one a round."""

    def __init__(self, **states: str) -> None:
        self.states = {name: found.split() for name, found in states.items()}
        self.rounds: list[list[str]] = []

    async def ProbeTasks(self, request: catalog_pb2.ProbeTasksRequest) -> AsyncIterator[Any]:
        self.rounds.append(list(request.digests))
        for digest in request.digests:
            state = catalog_pb2.TaskState.Value(f"TASK_STATE_{self.states[digest].pop(0).upper()}")
            yield catalog_pb2.ProbeTasksResponse(digest=digest, state=state, state_reason="why")


async def test_tasks_that_gave_no_answer_are_probed_once_more() -> None:
    progress = Progress([Stage("probe", 1)])
    catalog = Catalog(a="evaluable", b="needs_probe evaluable", c="evaluable")
    await _probe(catalog, ["a", "b", "c"], 0.1, progress, 2)
    assert catalog.rounds == [["a", "b", "c"], ["b"]]
    with pytest.raises(CliError, match=r"2 of 2 tasks cannot be used; first: a is rejected: why"):
        await _probe(Catalog(a="rejected", b="needs_probe needs_probe"), ["a", "b"], 0.1, progress, 2)


@pytest.fixture
def release(tmp_path: Path) -> Iterator[Home]:
    """All services, in a folder of their own, as a release has them."""
    home = Home(tmp_path / "home")
    folder = tmp_path / "controller"
    folder.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LONGSHORE_")}
    env = {**kept, "LONGSHORE_CONTROLLER_BASE_DIR": str(folder)}
    command = [sys.executable, "-m", "longshore_cli", "up", "--port-base", "0", "--home", str(home.path)]
    with (tmp_path / "up.log").open("w") as log:
        process = subprocess.Popen(command, stderr=log, stdout=log, env=env, cwd=tmp_path)
        try:
            deadline = time.monotonic() + 120
            while home.endpoints() is None:
                assert process.poll() is None, (tmp_path / "up.log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.2)
            yield home
        finally:
            process.terminate()
            process.wait(60)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_prepared_release_takes_the_example_and_a_second_time_nothing_is_done(release: Home, tmp_path: Path) -> None:
    def longshore(*arguments: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "longshore_cli", *arguments, "--home", str(release.path), "-o", "json"],
            cwd=REPOSITORY, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    first = longshore("demo", "prepare", "--cluster", "--quick")
    assert first["changed"]
    assert (tmp_path / "controller/demo/model/config.json").is_file()
    planned = longshore("run", "submit", str(REPOSITORY / CLUSTER_SPEC), "--dry-run")["plan"]
    assert planned["model"]["base_digest"] == first["artifacts"]["demo/model"]
    assert planned["demonstrations_digest"] == first["artifacts"]["demo/demonstrations.jsonl"]
    assert planned["paths"]["model"] == str(tmp_path / "controller/demo/model")
    began = time.monotonic()
    again = longshore("demo", "prepare", "--cluster")
    assert again == {**first, "changed": False}
    assert time.monotonic() - began < 30
