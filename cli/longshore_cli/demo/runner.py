"""The whole main job in one process: prepare, submit or resume, follow, check, report.

Called by `longshore demo`. Every stage is idempotent and leaves a marker, and the run itself lives in the controller's
database, so that after any interruption (Ctrl-C, kill -9) the same command goes on where it was.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from longshore_cli.demo.capture import check_capture
from longshore_cli.demo.config import SPEC, DemoConfig, examples_root, fill_spec, load_spec, read_config, write_config
from longshore_cli.demo.prepare import prepare
from longshore_cli.demo.progress import Progress, Stage
from longshore_cli.demo.stages import Markers
from longshore_cli.demo.watch import ensure_run, watch_run
from longshore_cli.errors import CliError, ExitCode
from longshore_cli.local.home import Home
from longshore_cli.local.process import Local, local_services, logs_to, stop_on_signal
from longshore_cli.local.settings import Layout
from longshore_cli.report.render import write_atomic, write_report
from longshore_common.digests import digest

# Most of an engine's start is imports: they run beside the warm start.
SETTINGS = {"inference-gateway": {"engine_prestart": True}}


@dataclass(frozen=True)
class DemoResult:
    """A finished demo."""

    report: dict[str, Any]
    folder: Path


def plan_stages(config: DemoConfig, spec: dict[str, Any]) -> list[Stage]:
    """Stages with what they take on two cores."""
    steps = config.steps or spec["algorithm"]["steps"]
    small = 0.25 if config.quick else 1.0
    return [
        Stage("services", 5),
        Stage("tasks", 5),
        Stage("model", 12),
        Stage("probe", 50 * small),
        Stage("warm start", 90 * small if spec.get("warm_start") else 1),
        Stage("engine", 40),
        Stage("training", (3 if config.quick else 8) * steps),
        Stage("evaluation", 25 * small),
        Stage("check", 12),
        Stage("report", 1),
    ]


def finished(home: Home) -> DemoResult | None:
    """The result of a demo that is through; its marker and both files must agree."""
    from longshore_cli.commands.report import load_report

    marker = Markers(home).read("report")
    if marker is None or not Markers(home)._outputs_unchanged(marker.get("outputs", {})):
        return None
    return DemoResult(load_report(home.path / "report.json"), home.path)


def clear_home(home: Home) -> None:
    """Removes a demo home and everything in it.

    Raises:
        CliError: it is in use, or it is not a demo's.
    """
    if not home.path.exists():
        return
    if home.in_use():
        raise CliError(f"home {home.path} is in use: stop its process before --fresh")
    if read_config(home) is None and any(home.path.iterdir()):
        raise CliError(f"{home.path} is not the home of a demo, so --fresh will not remove it: choose another --home")
    shutil.rmtree(home.path)


async def run_demo(home: Home, config: DemoConfig, layout: Layout) -> DemoResult:
    """Runs or goes on; returns when the report is written.

    Raises:
        CliError: a stage failed (code FINDING: the run did not succeed), or a signal came (code INTERRUPTED).
    """
    root = examples_root()
    spec = fill_spec(load_spec(root / SPEC), home, config)
    progress = Progress(plan_stages(config, spec))
    with stop_on_signal() as stop:
        progress.begin("services", "starting")
        async with AsyncExitStack() as stack:
            stack.enter_context(logs_to(home, "info"))
            local = await stack.enter_async_context(local_services(home, layout, overrides=SETTINGS))
            write_config(home, config)
            progress.end("services", f"7 services up; logs in {home.logs}")
            await stack.enter_async_context(progress.live())
            return await _until_stopped(_work(home, root, config, spec, local, progress), local, stop)


async def _until_stopped(work: Coroutine[Any, Any, DemoResult], local: Local, stop: asyncio.Event) -> DemoResult:
    task = asyncio.create_task(work)
    waiter = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait(list[asyncio.Future[Any]]((task, waiter, local.failed)), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return await task
        if stop.is_set():
            raise CliError("interrupted; run the same command again to go on", ExitCode.INTERRUPTED)
        name, error = local.failed.result()
        raise CliError(f"{name} died: {error}; see {local.home.logs / 'services.log'}", ExitCode.FINDING)
    finally:
        waiter.cancel()
        task.cancel()
        await asyncio.gather(task, waiter, return_exceptions=True)


async def _work(
    home: Home, root: Path, config: DemoConfig, spec: dict[str, Any], local: Local, progress: Progress
) -> DemoResult:
    from longshore.catalog.v1 import catalog_pb2_grpc
    from longshore.controller.v1 import controller_pb2_grpc
    from longshore.gateway.v1 import gateway_pb2_grpc
    from longshore.trajectory.v1 import trajectory_pb2_grpc
    from longshore_common.grpc_client import open_channel

    markers = Markers(home)
    async with AsyncExitStack() as stack:
        channels = {}
        for name in ("task-catalog", "controller", "trajectory-store", "inference-gateway"):
            channels[name] = open_channel(local.endpoints.grpc[name], local.secret, timeout_s=120.0)
            stack.push_async_callback(channels[name].close)
        catalog = catalog_pb2_grpc.CatalogServiceStub(channels["task-catalog"])
        controller = controller_pb2_grpc.ControllerServiceStub(channels["controller"])
        trajectory = trajectory_pb2_grpc.TrajectoryServiceStub(channels["trajectory-store"])
        gateway = gateway_pb2_grpc.GatewayServiceStub(channels["inference-gateway"])

        await prepare(home, root, config, spec, catalog, markers, progress)
        text = yaml.safe_dump(spec, sort_keys=False)
        write_atomic(home.path / "run.yaml", text)
        run, after = await ensure_run(controller, text, f"demo-{digest(text)[7:23]}")
        run = await watch_run(controller, run, after, progress)
        return await _conclude(home, run.run_id, channels["controller"], trajectory, gateway, markers, progress)


async def _conclude(
    home: Home, run_id: str, channel: Any, trajectory: Any, gateway: Any, markers: Markers, progress: Progress
) -> DemoResult:
    from longshore_cli.commands.report import fetch_report

    report = await fetch_report(channel, run_id)
    progress.begin("check", "comparing captured turns with a fresh forward pass")
    report["capture_check"] = await check_capture(home, run_id, report["run"]["alias"], trajectory, gateway)
    check = report["capture_check"]
    progress.end("check", f"{check.get('turns')} turns {'agree' if check.get('ok') else 'DO NOT AGREE'}")
    progress.begin("report", "writing")
    files = await asyncio.to_thread(write_report, report, home.path)
    await markers.mark("report", {"run": run_id}, list(files))
    progress.end("report", str(files[1]))
    return DemoResult(report, home.path)
