"""`longshore run`: submit, list, get, watch, stop, resume."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longshore_cli.connect import HomeOption, ServerOption, Start, Target, connected
from longshore_cli.errors import CliError, ExitCode
from longshore_cli.output import Output, OutputOption, age, note, print_fields, print_json, print_table, short

if TYPE_CHECKING:
    from longshore.controller.v1 import controller_pb2

app = typer.Typer(help="Submit runs, watch them, stop them, resume them.", no_args_is_help=True)

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Run id, or a name: the newest run of that name.")]
TimeoutOption = Annotated[
    float | None, typer.Option("--timeout", min=0.0, help="Give up watching after this many seconds (exit code 3).")
]


@app.command()
def submit(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Run spec, YAML or JSON; - reads standard input.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Resolve and check the spec, print the plan, change nothing.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the run's events to its end.")] = False,
    key: Annotated[
        str, typer.Option("--idempotency-key", help="The same key again gives the same run.", show_default=False)
    ] = "",
    timeout: TimeoutOption = None,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
    server: ServerOption = None,
) -> None:
    """Submit a run spec."""
    spec = read_text(file)
    target = Target(home, server)
    if dry_run:
        asyncio.run(_dry_run(target, spec, output))
    else:
        asyncio.run(_submit(target, spec, key, output, watch, timeout))


def read_text(file: Path) -> str:
    """The file's text, or standard input's for `-`."""
    if str(file) == "-":
        return sys.stdin.read()
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise CliError(f"cannot read {file}: {reason}; give the path of a text file") from error


async def _dry_run(target: Target, spec: str, output: Output) -> None:
    from longshore.controller.v1 import controller_pb2, controller_pb2_grpc

    async with connected(target, ["controller"], needs=["task-catalog"]) as channels:
        stub = controller_pb2_grpc.ControllerServiceStub(channels["controller"])
        answer = await stub.SubmitRun(controller_pb2.SubmitRunRequest(spec_yaml=spec, dry_run=True))
    plan = json.loads(answer.run.plan_json)
    if output is Output.JSON:
        print_json({"dry_run": True, "plan_digest": answer.run.plan_digest, "plan": plan})
        return
    print_fields([("plan digest", answer.run.plan_digest), *_flatten(plan)])
    note("dry run: nothing was changed")


def _flatten(value: Any, path: str = "") -> list[tuple[str, object]]:
    if isinstance(value, dict) and value:
        return [row for k, v in value.items() for row in _flatten(v, f"{path}.{k}" if path else str(k))]
    if isinstance(value, list) and len(value) > 4:
        return [(path, f"{len(value)} entries")]
    return [(path, json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value)]


async def _submit(target: Target, spec: str, key: str, output: Output, watch: bool, timeout: float | None) -> None:
    from longshore.controller.v1 import controller_pb2, controller_pb2_grpc

    async with connected(target, ["controller"], start=Start.NEVER) as channels:
        stub = controller_pb2_grpc.ControllerServiceStub(channels["controller"])
        answer = await stub.SubmitRun(controller_pb2.SubmitRunRequest(spec_yaml=spec, idempotency_key=key))
        if not watch:
            _show(answer.run, output)
            note("submitted" if answer.created else "this run exists already")
            return
        note(f"{answer.run.run_id} {'submitted' if answer.created else 'exists already'}")
        await follow(stub, answer.run.run_id, output, timeout)


async def follow(stub: Any, run_id: str, output: Output, timeout: float | None) -> None:
    """Prints events until the run has ended; exits 1 unless it succeeded, 3 after `timeout` seconds."""
    from longshore.controller.v1 import controller_pb2
    from longshore_common.grpc_client import mapped_stream

    async def read() -> None:
        request = controller_pb2.WatchEventsRequest(run=run_id, until_done=True)
        async for answer in mapped_stream(stub.WatchEvents(request)):
            print_event(answer.event, output)

    try:
        async with asyncio.timeout(timeout):
            await read()
    except TimeoutError as error:
        raise CliError(f"run {run_id} has not ended after {timeout:g} s; it goes on", ExitCode.TIMEOUT) from error
    run = (await stub.GetRun(controller_pb2.GetRunRequest(run=run_id))).run
    if state_of(run) != "succeeded":
        reason = run.state_reason or "see its events"
        raise CliError(f"run {run.run_id} is {state_of(run)}: {reason}", ExitCode.FINDING)


def print_event(event: controller_pb2.Event, output: Output) -> None:
    """One event as a line: text, or JSON."""
    from datetime import datetime

    from longshore_cli.plain import to_plain

    if output is Output.JSON:
        value = to_plain(event)
        value["data"] = json.loads(value.pop("data_json") or "{}")
        print(json.dumps(value, ensure_ascii=False), flush=True)
        return
    clock = datetime.fromtimestamp(event.at_ms / 1000).strftime("%H:%M:%S")
    print(f"{clock}  {event.kind:<16}  {event.message}", flush=True)


def state_of(run: controller_pb2.Run) -> str:
    """The run's state as the contracts spell it."""
    from longshore.controller.v1 import controller_pb2
    from longshore_cli.plain import enum_name

    return enum_name(controller_pb2.RunState, run.state)


def run_value(run: controller_pb2.Run) -> dict[str, Any]:
    """A run for JSON output; the plan as a value."""
    from longshore_cli.plain import to_plain

    value = to_plain(run)
    value["plan"] = json.loads(value.pop("plan_json") or "null")
    return value


def _show(run: controller_pb2.Run, output: Output) -> None:
    if output is Output.JSON:
        print_json(run_value(run))
        return
    counts = run.counts
    print_fields(
        [
            ("run", run.run_id),
            ("name", run.name),
            ("state", f"{state_of(run)}{': ' + run.state_reason if run.state_reason else ''}"),
            ("step", f"{run.step}/{run.total_steps}"),
            ("policy version", run.policy_version),
            ("incarnation", run.incarnation),
            ("plan", run.plan_digest),
            (
                "attempts",
                f"{counts.planned} planned + {counts.refilled} refilled = {counts.scored} scored + "
                f"{counts.failed} failed + {counts.discarded} discarded + {counts.open} open; {counts.retried} retried",
            ),
            *((name, f"{value:.4g}") for name, value in sorted(run.metrics.items())),
        ]
    )


@app.command("list")
def list_(output: OutputOption = Output.TABLE, home: HomeOption = None, server: ServerOption = None) -> None:
    """List runs, newest first."""

    async def work() -> list[Any]:
        from longshore.controller.v1 import controller_pb2, controller_pb2_grpc

        async with connected(Target(home, server), ["controller"]) as channels:
            stub = controller_pb2_grpc.ControllerServiceStub(channels["controller"])
            runs: list[Any] = []
            token = ""
            while True:
                page = await stub.ListRuns(controller_pb2.ListRunsRequest(page_token=token))
                runs += page.runs
                token = page.next_page_token
                if not token:
                    return runs

    runs = asyncio.run(work())
    if output is Output.JSON:
        print_json([run_value(run) for run in runs])
        return
    rows = [
        (
            r.run_id,
            r.name,
            state_of(r),
            f"{r.step}/{r.total_steps}",
            r.policy_version,
            age(r.created_at_ms),
            short(r.plan_digest),
        )
        for r in runs
    ]
    print_table(["run", "name", "state", "step", "version", "age", "plan"], rows)


@app.command()
def get(
    run: RunArgument, output: OutputOption = Output.TABLE, home: HomeOption = None, server: ServerOption = None
) -> None:
    """Show one run."""

    async def work() -> Any:
        from longshore.controller.v1 import controller_pb2, controller_pb2_grpc

        async with connected(Target(home, server), ["controller"]) as channels:
            stub = controller_pb2_grpc.ControllerServiceStub(channels["controller"])
            return (await stub.GetRun(controller_pb2.GetRunRequest(run=run))).run

    _show(asyncio.run(work()), output)


@app.command()
def watch(
    run: RunArgument,
    timeout: TimeoutOption = None,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
    server: ServerOption = None,
) -> None:
    """Follow a run's events to its end; exit code 1 unless it succeeded. Ctrl-C leaves the run going on."""

    async def work() -> None:
        from longshore.controller.v1 import controller_pb2, controller_pb2_grpc

        async with connected(Target(home, server), ["controller"], start=Start.NEVER) as channels:
            stub = controller_pb2_grpc.ControllerServiceStub(channels["controller"])
            found = (await stub.GetRun(controller_pb2.GetRunRequest(run=run))).run
            await follow(stub, found.run_id, output, timeout)

    asyncio.run(work())


@app.command()
def stop(
    run: RunArgument,
    reason: Annotated[str, typer.Option("--reason", help="Kept with the run.")] = "stopped by the user",
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
    server: ServerOption = None,
) -> None:
    """Stop a run. It can be resumed."""

    async def work() -> Any:
        from longshore.controller.v1 import controller_pb2, controller_pb2_grpc

        async with connected(Target(home, server), ["controller"], start=Start.NEVER) as channels:
            stub = controller_pb2_grpc.ControllerServiceStub(channels["controller"])
            return (await stub.StopRun(controller_pb2.StopRunRequest(run=run, reason=reason))).run

    _show(asyncio.run(work()), output)


@app.command()
def resume(
    run: RunArgument, output: OutputOption = Output.TABLE, home: HomeOption = None, server: ServerOption = None
) -> None:
    """Resume an interrupted, stopped or failed run from its newest checkpoint."""

    async def work() -> Any:
        from longshore.controller.v1 import controller_pb2, controller_pb2_grpc

        async with connected(Target(home, server), ["controller"], start=Start.NEVER) as channels:
            stub = controller_pb2_grpc.ControllerServiceStub(channels["controller"])
            return (await stub.ResumeRun(controller_pb2.ResumeRunRequest(run=run))).run

    _show(asyncio.run(work()), output)
