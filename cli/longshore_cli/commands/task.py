"""`longshore task`: import, list, inspect, lint, split, freeze, probe."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longshore_cli.connect import HomeOption, ServerOption, Start, Target, connected
from longshore_cli.errors import CliError, ExitCode
from longshore_cli.output import Output, OutputOption, note, print_fields, print_json, print_table, short

if TYPE_CHECKING:
    from longshore.catalog.v1 import catalog_pb2

app = typer.Typer(help="Import tasks, check them, split them, freeze them, probe them.", no_args_is_help=True)

PathArgument = Annotated[Path, typer.Argument(metavar="PATH", help="A task folder, or a folder of task folders.")]
_PROBE_NEEDS = ("sandbox-scheduler", "reward-verifier")


def _stub(channel: Any) -> Any:
    from longshore.catalog.v1 import catalog_pb2_grpc

    return catalog_pb2_grpc.CatalogServiceStub(channel)


def _findings(answers: list[tuple[Path, catalog_pb2.ImportTaskResponse]]) -> list[dict[str, Any]]:
    from longshore_cli.plain import to_plain

    return [{"task": folder.name, **to_plain(f)} for folder, answer in answers for f in answer.findings]


def _print_findings(findings: list[dict[str, Any]]) -> None:
    rows = [(f["task"], f["severity"], f["rule"], f["where"], f["message"]) for f in findings]
    print_table(["task", "severity", "rule", "where", "message"], rows)


@app.command("import")
def import_(
    path: PathArgument,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
    server: ServerOption = None,
) -> None:
    """Store tasks. The same content again is the same task."""
    from longshore_cli.tasks import import_folders, task_folders

    folders = task_folders(path)

    async def work() -> list[tuple[Path, Any]]:
        async with connected(Target(home, server), ["task-catalog"], start=Start.HOME) as channels:
            return await import_folders(_stub(channels["task-catalog"]), folders)

    answers = asyncio.run(work())
    from longshore_cli.plain import to_plain

    if output is Output.JSON:
        print_json([to_plain(answer) for _, answer in answers])
    else:
        rows = [
            (a.task.name, short(a.task.digest), to_plain(a.task)["state"], "new" if a.created else "known")
            for _, a in answers
        ]
        print_table(["task", "digest", "state", ""], rows)
    created = sum(answer.created for _, answer in answers)
    note(f"{len(answers)} tasks: {created} new, {len(answers) - created} known")


@app.command()
def lint(
    path: PathArgument, output: OutputOption = Output.TABLE, home: HomeOption = None, server: ServerOption = None
) -> None:
    """Check task folders and store nothing; exit code 1 when there are errors."""
    from longshore_cli.tasks import import_folders, task_folders

    folders = task_folders(path)

    async def work() -> list[dict[str, Any]]:
        async with connected(Target(home, server), ["task-catalog"], start=Start.SCRATCH) as channels:
            return await lint_folders(_stub(channels["task-catalog"]), folders, import_folders)

    findings = asyncio.run(work())
    errors = sum(f["severity"] == "error" for f in findings)
    if output is Output.JSON:
        print_json(findings)
    elif findings:
        _print_findings(findings)
    note(f"{len(folders)} tasks: {errors} errors, {len(findings) - errors} warnings")
    if errors:
        raise typer.Exit(int(ExitCode.FINDING))


async def lint_folders(stub: Any, folders: list[Path], import_folders: Any) -> list[dict[str, Any]]:
    """Findings of all folders; a task that cannot even be parsed is a finding, not a fault."""
    from longshore_common.errors import InvalidSpec

    findings: list[dict[str, Any]] = []
    for folder in folders:
        try:
            findings += _findings(await import_folders(stub, [folder], dry_run=True))
        except InvalidSpec as error:
            where = error.field or "task.toml"
            findings.append(
                {
                    "task": folder.name,
                    "severity": "error",
                    "rule": "invalid-task",
                    "where": where,
                    "message": error.message,
                }
            )
    return findings


@app.command("list")
def list_(
    dataset: Annotated[str, typer.Option("--dataset", help="Only tasks of this dataset.")] = "",
    split: Annotated[str, typer.Option("--split", help="Only this split of the dataset.")] = "",
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
    server: ServerOption = None,
) -> None:
    """List tasks."""
    from longshore_cli.plain import to_plain
    from longshore_cli.tasks import all_tasks

    async def work() -> list[Any]:
        async with connected(Target(home, server), ["task-catalog"]) as channels:
            return await all_tasks(_stub(channels["task-catalog"]), dataset, split)

    found = [to_plain(task) for task in asyncio.run(work())]
    if output is Output.JSON:
        print_json(found)
        return
    rows = [(t["name"], short(t["digest"]), t["state"], t["state_reason"]) for t in found]
    print_table(["task", "digest", "state", "reason"], rows)


@app.command()
def inspect(
    task: Annotated[str, typer.Argument(metavar="TASK", help="A digest, or a name that has one digest.")],
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
    server: ServerOption = None,
) -> None:
    """Show one task: what it is, its state and the evidence for it."""
    from longshore_cli.plain import to_plain

    async def work() -> Any:
        from longshore.catalog.v1 import catalog_pb2

        async with connected(Target(home, server), ["task-catalog"]) as channels:
            return (await _stub(channels["task-catalog"]).GetTask(catalog_pb2.GetTaskRequest(task=task))).task

    value = to_plain(asyncio.run(work()))
    value["metadata"] = json.loads(value.pop("metadata_json") or "{}")
    if output is Output.JSON:
        print_json(value)
        return
    limits = value["limits"] or {}
    print_fields(
        [
            *((k, value[k]) for k in ("name", "digest", "environment_digest", "tests_digest")),
            ("state", f"{value['state']}{': ' + value['state_reason'] if value['state_reason'] else ''}"),
            ("limits", ", ".join(f"{k} {v:g}" for k, v in limits.items())),
            ("workdir", value["workdir"]),
            ("metadata", json.dumps(value["metadata"])),
            ("instruction", value["instruction"].strip()),
            *((f"evidence {e['kind']}", _evidence(e)) for e in value["evidence"]),
            *((f"{f['severity']} {f['rule']}", f"{f['where']}: {f['message']}") for f in value["findings"]),
        ]
    )


def _evidence(evidence: dict[str, Any]) -> str:
    rewards = ", ".join(f"{r:g}" for r in evidence["rewards"])
    failures = f"; failures {', '.join(evidence['failures'])}" if evidence["failures"] else ""
    return f"rewards [{rewards}]{failures}; image {short(evidence['image_digest'])}"


@app.command()
def split(
    out: Annotated[Path, typer.Option("--out", help="Splits file to write, for `task freeze --splits`.")],
    train: Annotated[float, typer.Option(help="Share of each skill.")] = 0.5,
    dev: Annotated[float, typer.Option(help="Share of each skill.")] = 0.1,
    test: Annotated[float, typer.Option(help="Share of each skill.")] = 0.4,
    seed: Annotated[int, typer.Option(help="Another seed gives another split.")] = 1,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
    server: ServerOption = None,
) -> None:
    """Split the catalog's tasks by digest, each skill by the same shares; rejected and flaky tasks stay out."""
    from longshore_cli.plain import to_plain
    from longshore_cli.report.render import write_atomic
    from longshore_cli.tasks import all_tasks, make_splits

    async def work() -> list[Any]:
        async with connected(Target(home, server), ["task-catalog"]) as channels:
            return await all_tasks(_stub(channels["task-catalog"]))

    usable = [t for t in map(to_plain, asyncio.run(work())) if t["state"] not in ("rejected", "flaky")]
    if not usable:
        raise CliError("the catalog has no usable task: import some with `longshore task import PATH`")
    pairs = [(t["digest"], str(json.loads(t["metadata_json"] or "{}").get("skill", ""))) for t in usable]
    splits = make_splits(pairs, {"train": train, "dev": dev, "test": test}, seed)
    write_atomic(out, json.dumps(splits, indent=2) + "\n")
    for name in (name for name, members in splits.items() if not members):
        note(f"{name} is empty: {len(usable)} tasks are too few for its share")
    if output is Output.JSON:
        print_json(splits)
    else:
        print_table(["split", "tasks"], [(name, len(members)) for name, members in splits.items()])


@app.command()
def freeze(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the dataset; it never changes its content.")],
    splits: Annotated[Path, typer.Option("--splits", help="YAML or JSON: split name to task names or digests.")],
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
    server: ServerOption = None,
) -> None:
    """Lock a named set of tasks with its splits."""
    from longshore_cli.plain import to_plain
    from longshore_cli.tasks import freeze as freeze_dataset
    from longshore_cli.tasks import read_splits

    wanted = read_splits(splits)

    async def work() -> Any:
        async with connected(Target(home, server), ["task-catalog"], start=Start.HOME) as channels:
            return await freeze_dataset(_stub(channels["task-catalog"]), name, wanted)

    answer = asyncio.run(work())
    if output is Output.JSON:
        print_json(to_plain(answer))
        return
    dataset = answer.dataset
    sizes = ", ".join(f"{len(s.task_digests)} {s.name}" for s in dataset.splits)
    print_fields([("dataset", dataset.name), ("digest", dataset.digest), ("splits", sizes)])
    note("frozen" if answer.created else "was frozen already, with this content")


@app.command()
def probe(
    tasks: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TASK|DATASET]...", help="Names or digests; a dataset: all its tasks."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All tasks of the catalog.")] = False,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of the oracle.")] = 1,
    concurrency: Annotated[int, typer.Option(min=0, help="Sandboxes at once; 0: the service's default.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Probe again where evidence exists.")] = False,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
    server: ServerOption = None,
) -> None:
    """Run oracle and nop in sandboxes; exit code 1 when a task is rejected or flaky."""
    from longshore_cli import tasks as work_on
    from longshore_cli.plain import to_plain

    if bool(tasks) == everything:
        raise CliError("say which tasks: names, digests or datasets, or --all")

    async def work() -> list[dict[str, Any]]:
        target = Target(home, server)
        async with connected(target, ["task-catalog"], needs=_PROBE_NEEDS, start=Start.HOME) as channels:
            stub = _stub(channels["task-catalog"])
            if everything:
                digests = [task.digest for task in await work_on.all_tasks(stub)]
            else:
                digests = await work_on.tasks_and_datasets(stub, tasks or [])
            answers = []
            async for answer in work_on.probe(stub, digests, repeats=repeats, concurrency=concurrency, force=force):
                answers.append(to_plain(answer))
                note(f"{len(answers)}/{len(digests)}  {short(answer.digest)}  {answers[-1]['state']}")
            return answers

    answers = asyncio.run(work())
    if output is Output.JSON:
        print_json(answers)
    else:
        rows = [(short(a["digest"]), a["state"], "kept" if a["cached"] else "new", a["state_reason"]) for a in answers]
        print_table(["task", "state", "evidence", "reason"], rows)
    if any(a["state"] in ("rejected", "flaky") for a in answers):
        raise typer.Exit(int(ExitCode.FINDING))
