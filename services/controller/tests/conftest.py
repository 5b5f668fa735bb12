"""A controller on SQLite with the real trajectory store over gRPC; the other services are small and in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import func, select

from longshore.trajectory.v1 import trajectory_pb2_grpc as rpc
from longshore_common.app import running
from longshore_common.clock import SystemClock
from longshore_common.database import Database, migrate
from longshore_common.grpc_client import open_channel
from longshore_controller.bootstrap import Adapters, Parts, wire
from longshore_controller.clients.artifact_store import FolderArtifactStore
from longshore_controller.clients.trajectory import GrpcTrajectory
from longshore_controller.domain.records import RunRecord
from longshore_controller.domain.vocabulary import LeaseState, RunState
from longshore_controller.settings import Settings
from longshore_controller.store import tables as t

from .fakes import FakeArtifacts, FakeCatalog, FakeDemand, FakeGateway, FakeLauncher, FakeWorker, Gate

MAX_ARTIFACT_BYTES = 4 * 1024 * 1024


@dataclass
class Harbor:
    """What a test needs; `controller()` starts one, as often as wanted, on the same database."""

    root: Path
    catalog: FakeCatalog
    gateway: FakeGateway
    launcher: FakeLauncher
    stub: rpc.TrajectoryServiceStub
    trajectory: GrpcTrajectory
    settings: Settings
    demand: FakeDemand = field(default_factory=FakeDemand)

    @contextlib.asynccontextmanager
    async def controller(
        self, *, worker: bool = True, serve: bool = True, kill: bool = False, announce: bool = False
    ) -> AsyncIterator[Living]:
        """kill: ends as a killed process does, without a word to the database."""
        url = self.settings.resolved_database_url("controller")
        await asyncio.to_thread(migrate, url, "longshore_controller.store")
        database = Database(url)
        adapters = Adapters(
            self.catalog,
            self.trajectory,
            self.gateway,
            self.launcher,
            FakeArtifacts(self.root),
            FolderArtifactStore(self.root, SystemClock(), MAX_ARTIFACT_BYTES),
            self.demand,
            SystemClock(),
        )
        parts = wire(self.settings, database, adapters)
        self.launcher.report = parts.application.steps.report
        living = Living(parts, FakeWorker(parts.application.leases, self.stub, self.gateway), database, [])
        await parts.manager.recover()
        tasks = [asyncio.create_task(living.worker.serve())] if worker else []
        tasks += [asyncio.create_task(parts.manager.serve())] if serve else []
        tasks += [asyncio.create_task(parts.announcer.serve())] if announce else []
        living.tasks = tasks
        try:
            yield living
        finally:
            if kill:

                async def nothing() -> None:
                    await parts.manager.abandon()

                parts.manager.interrupt = nothing  # type: ignore[method-assign]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await database.close()


@dataclass
class Living:
    """A running controller."""

    parts: Parts
    worker: FakeWorker
    database: Database
    tasks: list[asyncio.Task[None]]

    async def submit(self, text: str, key: str = "") -> RunRecord:
        run, _ = await self.parts.application.submission.submit(text, False, key)
        return run

    async def until_queued(self, run_id: str, attempts: int) -> None:
        """Waits until so many attempts of a run wait for a worker."""
        async with asyncio.timeout(30):
            while await self._queued(run_id) < attempts:
                await asyncio.sleep(0.02)

    async def _queued(self, run_id: str) -> int:
        query = select(func.count()).where(t.attempts.c.run_id == run_id, t.attempts.c.state == LeaseState.QUEUED)
        async with self.database.read() as connection:
            return int((await connection.execute(query)).scalar_one())

    async def until(self, run_id: str, *states: RunState, timeout_s: float = 60.0) -> RunRecord:
        """Waits for one of the states."""
        wanted = states or (RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED)
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            runs, _ = await self.parts.application.queries.page(0, "")
            run = next(item for item in runs if item.run_id == run_id)
            if run.state in wanted:
                return run
            for task in self.tasks:
                if task.done():
                    task.result()
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError(f"run is still {run.state} at step {run.step}, not {wanted}")
            await asyncio.sleep(0.02)


@pytest.fixture
async def harbor(tmp_path: Path) -> AsyncIterator[Harbor]:
    from longshore_trajectory_store.bootstrap import build
    from longshore_trajectory_store.settings import Settings as TrajectorySettings

    app = await build(TrajectorySettings(data_dir=tmp_path / "trajectory-store", secret="s"))
    async with running(app) as store:
        channel = open_channel(store.grpc_addresses[0], "s")
        stub = rpc.TrajectoryServiceStub(channel)
        gateway = FakeGateway(Gate())
        settings = Settings(data_dir=tmp_path / "controller", lease_ttl_s=20.0, trainer_restarts=1)
        yield Harbor(
            tmp_path, FakeCatalog(), gateway, FakeLauncher(stub, gateway), stub, GrpcTrajectory(channel), settings
        )
        await channel.close()
