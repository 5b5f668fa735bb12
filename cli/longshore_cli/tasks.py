"""Task folders on the way to the catalog: found, packed, imported, frozen, probed. Used by `task` and `demo`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longshore_cli.errors import CliError

if TYPE_CHECKING:
    from longshore.catalog.v1 import catalog_pb2

PARALLEL = 8


def task_folders(path: Path) -> list[Path]:
    """`path` itself when it is a task, else the tasks right below it, by name.

    Raises:
        CliError: there is no such folder, or no task in it.
    """
    if not path.is_dir():
        raise CliError(f"{path} is not a folder: give a task folder, or a folder of task folders")
    if (path / "task.toml").exists() or (path / "instruction.md").exists():
        return [path]
    found = sorted(child for child in path.iterdir() if child.is_dir() and (child / "task.toml").exists())
    if not found:
        raise CliError(f"no task in {path}: a task is a folder with task.toml, instruction.md, environment/ and tests/")
    return found


async def import_folders(
    stub: Any, folders: Sequence[Path], *, dry_run: bool = False, on_each: Callable[[int], None] = lambda _: None
) -> list[tuple[Path, catalog_pb2.ImportTaskResponse]]:
    """Imports each folder; results in the order given. Findings are in the answers, faults are raised."""
    from longshore.catalog.v1 import catalog_pb2
    from longshore_common.bundle import pack_folder

    gate = asyncio.Semaphore(PARALLEL)
    done = 0

    async def one(folder: Path) -> tuple[Path, catalog_pb2.ImportTaskResponse]:
        nonlocal done
        async with gate:
            bundle = await asyncio.to_thread(pack_folder, folder)
            request = catalog_pb2.ImportTaskRequest(
                name=folder.resolve().name, bundle_tar_zst=bundle, source=folder.resolve().name, dry_run=dry_run
            )
            answer = await stub.ImportTask(request)
        done += 1
        on_each(done)
        return folder, answer

    return list(await asyncio.gather(*(one(folder) for folder in folders)))


async def all_tasks(stub: Any, dataset: str = "", split: str = "") -> list[catalog_pb2.Task]:
    """All tasks of the catalog, or of one dataset or split."""
    from longshore.catalog.v1 import catalog_pb2

    tasks: list[catalog_pb2.Task] = []
    token = ""
    while True:
        request = catalog_pb2.ListTasksRequest(dataset=dataset, split=split, page_size=500, page_token=token)
        page = await stub.ListTasks(request)
        tasks += page.tasks
        token = page.next_page_token
        if not token:
            return tasks


async def resolve_digests(stub: Any, names: Sequence[str]) -> list[str]:
    """Digests of tasks given by digest, by full name, or by the name's last part where only one task has it.

    Raises:
        CliError: a name that the catalog does not know, or that several tasks have.
    """
    if all(name.startswith("sha256:") for name in names):
        return list(names)
    known: dict[str, set[str]] = {}
    for task in await all_tasks(stub):
        for name in {task.name, task.name.rpartition("/")[2]}:
            known.setdefault(name, set()).add(task.digest)
    return [name if name.startswith("sha256:") else _one_digest(name, known.get(name, set())) for name in names]


async def tasks_and_datasets(stub: Any, names: Sequence[str]) -> list[str]:
    """Digests of tasks, each once; a frozen dataset's name stands for all its tasks."""
    from longshore.catalog.v1 import catalog_pb2

    datasets = {d.name: d for d in (await stub.ListDatasets(catalog_pb2.ListDatasetsRequest())).datasets}
    found = await resolve_digests(stub, [name for name in names if name not in datasets])
    for name in names:
        if name in datasets:
            found += [digest for split in datasets[name].splits for digest in split.task_digests]
    return list(dict.fromkeys(found))


def _one_digest(name: str, digests: set[str]) -> str:
    if not digests:
        raise CliError(f"the catalog has no task {name}: import it first, or see `longshore task list`")
    if len(digests) > 1:
        shown = ", ".join(sorted(digests))
        raise CliError(f"{len(digests)} tasks are called {name}: name one by its digest ({shown})")
    return next(iter(digests))


async def freeze(stub: Any, name: str, splits: Mapping[str, Sequence[str]]) -> catalog_pb2.FreezeDatasetResponse:
    """Freezes a dataset; its splits name tasks or digests."""
    from longshore.catalog.v1 import catalog_pb2

    request = catalog_pb2.FreezeDatasetRequest(name=name)
    for split, tasks in splits.items():
        request.splits.add(name=split, task_digests=await resolve_digests(stub, tasks))
    return await stub.FreezeDataset(request)  # type: ignore[no-any-return]


async def probe(
    stub: Any, digests: Sequence[str], *, repeats: int = 1, concurrency: int = 0, force: bool = False
) -> AsyncIterator[catalog_pb2.ProbeTasksResponse]:
    """Runs oracle and nop; one answer per task as it ends."""
    from longshore.catalog.v1 import catalog_pb2
    from longshore_common.grpc_client import mapped_stream

    request = catalog_pb2.ProbeTasksRequest(digests=digests, repeats=repeats, concurrency=concurrency, force=force)
    async for answer in mapped_stream(stub.ProbeTasks(request)):
        yield answer


def read_splits(file: Path) -> dict[str, list[str]]:
    """A splits file: YAML or JSON, split name to a list of task names or digests.

    Raises:
        CliError: it cannot be read or has another shape.
    """
    import yaml

    try:
        value = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CliError(f"cannot read {file}: {error.strerror}; `longshore task split` writes such a file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        line = str(error).replace("\n", " ")
        raise CliError(f"{file} is not YAML or JSON: {line}; give split names with lists of tasks") from error
    if isinstance(value, dict) and isinstance(value.get("splits"), dict):
        value = value["splits"]
    shaped = (
        isinstance(value, dict)
        and value
        and all(isinstance(tasks, list) and all(isinstance(t, str) for t in tasks) for tasks in value.values())
    )
    if not shaped:
        raise CliError(f'{file} is not a splits file: it must look like {{"train": ["task-a", ...], "test": [...]}}')
    return {str(name): list(tasks) for name, tasks in value.items()}


def make_splits(tasks: Sequence[tuple[str, str]], shares: Mapping[str, float], seed: int) -> dict[str, list[str]]:
    """Splits tasks given as (digest, skill), each skill by the same shares; the same input gives the same splits.

    Raises:
        CliError: shares that are not positive or exceed 1 together.
    """
    import hashlib

    if any(share <= 0 for share in shares.values()) or sum(shares.values()) > 1 + 1e-9:
        raise CliError(
            f"shares must be above 0 and at most 1 together, got {dict(shares)}: lower --train, --dev or --test"
        )
    by_skill: dict[str, list[str]] = {}
    for digest, skill in tasks:
        by_skill.setdefault(skill, []).append(digest)
    splits: dict[str, list[str]] = {name: [] for name in shares}
    for members in by_skill.values():
        order = sorted(set(members), key=lambda d: hashlib.sha256(f"{seed}:{d}".encode()).digest())
        start = 0.0
        for name, share in shares.items():
            stop = start + share * len(order)
            splits[name] += order[round(start) : round(stop)]
            start = stop
    return {name: sorted(members) for name, members in splits.items()}
