"""From nothing to what the run needs: tasks, demonstrations, a tiny model; imported, frozen and probed."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longshore_cli import tasks as work_on
from longshore_cli.demo.config import GENERATOR, RIGHT_SHARE, VOCABULARY, DemoConfig
from longshore_cli.demo.progress import Progress
from longshore_cli.demo.stages import Markers
from longshore_cli.errors import CliError
from longshore_cli.local.home import Home
from longshore_common.child import spawn

if TYPE_CHECKING:
    from collections.abc import Mapping

LOG_LINES = 6


async def run_tool(name: str, argv: Sequence[str], home: Home) -> None:
    """Runs a Python tool of this repository as a child; its output goes to HOME/logs.

    Raises:
        CliError: it failed; with the end of its output.
    """
    log = home.logs / f"{name}.log"
    child = await spawn(name, [sys.executable, *argv], env={**os.environ, "OMP_NUM_THREADS": "1"}, log_path=log)
    try:
        code = await child.wait()
    except asyncio.CancelledError:
        await child.stop()
        raise
    if code != 0:
        tail = " | ".join(line.strip() for line in child.log_tail(LOG_LINES).splitlines() if line.strip())
        raise CliError(f"{name} ended with status {code}: {tail or 'no output'}; see {log}")


async def prepare(
    home: Home,
    root: Path,
    config: DemoConfig,
    spec: Mapping[str, Any],
    catalog: Any,
    markers: Markers,
    progress: Progress,
    probes: int = 0,
) -> None:
    """All of it, into the home and the catalog of these services; what is done already is kept.

    probes: tasks probed at a time; 0: as the catalog likes.

    Raises:
        CliError: a tool failed, or a task of ours is rejected or flaky.
    """
    await make_tasks(home, root, config, spec, markers, progress)
    # The model keeps one core busy, probing the other.
    await _together(
        make_model(home, config, markers, progress),
        prepare_catalog(catalog, home, spec["tasks"]["dataset"], markers, progress, probes),
    )


async def _together(*works: Coroutine[Any, Any, None]) -> None:
    """Waits for all; the first error cancels the others and is raised as it is, not in a group."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def make_tasks(
    home: Home, root: Path, config: DemoConfig, spec: Mapping[str, Any], markers: Markers, progress: Progress
) -> None:
    """Task folders and demonstrations, the same for the same seed."""
    observation = spec["harness"].get("config", {}).get("observation_chars")
    inputs = {
        "seed": config.seed,
        "contents": config.contents,
        "count": config.demonstrations,
        "observation": observation,
    }
    if await markers.done("tasks", inputs):
        progress.skip("tasks", "kept")
        return
    progress.begin("tasks", "making tasks and demonstrations")
    tasks, demonstrations = home.path / "tasks", home.path / "demonstrations.jsonl"
    generator = str(root / GENERATOR)
    counts = [word for split, count in config.contents.items() for word in (f"--{split}", str(count))]
    await run_tool("tasks", [generator, "--out", str(tasks), "--seed", str(config.seed), *counts], home)
    command = [generator, "demonstrations", "--out", str(demonstrations), "--count", str(config.demonstrations)]
    command += ["--seed", str(config.seed), "--right", str(RIGHT_SHARE)]
    if observation is not None:
        command += ["--observation-chars", str(observation)]
    await run_tool("demonstrations", command, home)
    await markers.mark("tasks", inputs, [tasks, demonstrations])
    progress.end("tasks", f"{len(work_on.task_folders(tasks))} tasks, {config.demonstrations} demonstrations")


async def make_model(home: Home, config: DemoConfig, markers: Markers, progress: Progress) -> None:
    """A tiny model with random weights and its tokenizer."""
    inputs = {"seed": config.seed, "vocabulary": VOCABULARY, "tasks": (markers.read("tasks") or {}).get("outputs")}
    if await markers.done("model", inputs):
        progress.skip("model", "kept")
        return
    progress.begin("model", "making a tiny model and its tokenizer")
    model = home.path / "model"
    command = ["-m", "longshore_trainer.tiny_model", "--out", str(model), "--vocab", str(VOCABULARY)]
    command += ["--corpus", str(home.path / "demonstrations.jsonl"), "--seed", str(config.seed)]
    await run_tool("model", command, home)
    await markers.mark("model", inputs, [model])
    progress.end("model")


async def prepare_catalog(
    stub: Any, home: Home, dataset: str, markers: Markers, progress: Progress, probes: int = 0
) -> None:
    """Imports, freezes and probes the tasks. What was probed before is evidence in the catalog, and stays.

    Raises:
        CliError: a task of ours is rejected or flaky.
    """
    inputs = {"dataset": dataset, "tasks": (markers.read("tasks") or {}).get("outputs")}
    marker = markers.read("probe")
    if (
        await markers.done("probe", inputs)
        and marker
        and await _dataset_digest(stub, dataset) == marker["notes"]["digest"]
    ):
        progress.skip("probe", "kept")
        return
    progress.begin("probe", "importing tasks")
    folders = work_on.task_folders(home.path / "tasks")
    share = 0.15
    answers = await work_on.import_folders(
        stub,
        folders,
        on_each=lambda n: progress.update("probe", share * n / len(folders), f"{n}/{len(folders)} imported"),
    )
    digest_of = {folder.name: answer.task.digest for folder, answer in answers}
    splits = work_on.read_splits(home.path / "tasks" / "splits.json")
    frozen = await work_on.freeze(stub, dataset, {s: [digest_of[n] for n in names] for s, names in splits.items()})
    progress.say("probe", f"frozen as {dataset}: {', '.join(f'{len(v)} {k}' for k, v in splits.items())}")
    await _probe(stub, list(digest_of.values()), share, progress, probes)
    progress.end("probe", f"{len(digest_of)} tasks: the oracle solves each, doing nothing solves none")
    await markers.mark("probe", inputs, [], {"digest": frozen.dataset.digest, "tasks": dict(sorted(digest_of.items()))})


async def _dataset_digest(stub: Any, name: str) -> str:
    """The frozen dataset's digest; empty when the catalog does not know it."""
    from longshore.catalog.v1 import catalog_pb2
    from longshore_common.errors import NotFound

    try:
        return str((await stub.GetDataset(catalog_pb2.GetDatasetRequest(name=name))).dataset.digest)
    except NotFound:
        return ""


async def _probe(stub: Any, digests: Sequence[str], share: float, progress: Progress, probes: int) -> None:
    from longshore_cli.plain import to_plain

    bad: dict[str, str] = {}
    done = 0
    todo = digests
    # A second time for those that said nothing: a sandbox that did not start is no word about its task.
    for again in (False, True):
        silent = []
        async for answer in work_on.probe(stub, todo, concurrency=probes):
            done += not again
            progress.update("probe", share + (1 - share) * done / len(digests), f"{done}/{len(digests)} probed")
            state = to_plain(answer)["state"]
            if state == "needs_probe" and not again:
                silent.append(answer.digest)
            elif state in ("rejected", "flaky", "needs_probe"):
                bad[answer.digest] = f"{answer.digest[:19]} is {state}: {answer.state_reason}"
        todo = silent
        if not todo:
            break
        progress.say("probe", f"{len(todo)} gave no answer: once more")
    if bad:
        first = next(iter(bad.values()))
        raise CliError(f"{len(bad)} of {len(digests)} tasks cannot be used; first: {first}; see `longshore task list`")
