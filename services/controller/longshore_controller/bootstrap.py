"""Wires the controller: the only file that picks concrete adapters."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import grpc.aio

from longshore.controller.v1 import controller_pb2_grpc as rpc
from longshore_common.app import App, GrpcEndpoint, HttpEndpoint
from longshore_common.clock import Clock, SystemClock
from longshore_common.database import Database, migrate
from longshore_common.grpc_client import open_channel
from longshore_common.patience import Patience
from longshore_controller.api.rest import make_rest
from longshore_controller.api.servicer import Application, ControllerServicer
from longshore_controller.application.announcing import DemandAnnouncer
from longshore_controller.application.artifacts import ArtifactService
from longshore_controller.application.closing import RunCloser
from longshore_controller.application.context import RunContexts
from longshore_controller.application.driver import RunDriver
from longshore_controller.application.evaluating import Evaluating
from longshore_controller.application.follower import Reconciler, SealedFollower
from longshore_controller.application.groups import GroupCreator
from longshore_controller.application.leasing import LeaseService
from longshore_controller.application.manager import RunManager
from longshore_controller.application.observing import Observer
from longshore_controller.application.queries import RunQueries
from longshore_controller.application.reporting import ReportService
from longshore_controller.application.steps import StepService
from longshore_controller.application.submission import SubmissionService
from longshore_controller.application.trainer_jobs import TrainerJobs
from longshore_controller.application.training import Training
from longshore_controller.application.warm_start import Serving, WarmStart
from longshore_controller.application.watching import EventWatcher
from longshore_controller.clients.artifact_store import FolderArtifactStore
from longshore_controller.clients.artifacts import LocalArtifacts
from longshore_controller.clients.catalog import GrpcCatalog
from longshore_controller.clients.gateway import GrpcGateway
from longshore_controller.clients.launcher import SubprocessLauncher
from longshore_controller.clients.sandboxes import GrpcSandboxDemand
from longshore_controller.clients.trajectory import GrpcTrajectory
from longshore_controller.domain.jobs import Addresses
from longshore_controller.domain.ports import (
    Artifacts,
    ArtifactStore,
    Catalog,
    Gateway,
    JobLauncher,
    SandboxDemand,
    Trajectory,
)
from longshore_controller.settings import Settings
from longshore_controller.signals import Signal
from longshore_controller.store.leases import SqlLeaseStore
from longshore_controller.store.runs import SqlRunStore
from longshore_controller.store.work import SqlWorkStore

SERVICE = "longshore.controller.v1.ControllerService"
_STOP_PATIENCE_S = 5.0


@dataclass(frozen=True)
class Adapters:
    """The outside world as the controller uses it."""

    catalog: Catalog
    trajectory: Trajectory
    gateway: Gateway
    launcher: JobLauncher
    artifacts: Artifacts
    pushed: ArtifactStore
    demand: SandboxDemand
    clock: Clock


@dataclass(frozen=True)
class Parts:
    """The wired controller."""

    application: Application
    manager: RunManager
    observer: Observer
    announcer: DemandAnnouncer


@dataclass(frozen=True)
class _Stores:
    runs: SqlRunStore
    work: SqlWorkStore
    leases: SqlLeaseStore
    contexts: RunContexts
    changed: Signal
    work_added: Signal


def wire(settings: Settings, database: Database, adapters: Adapters) -> Parts:
    """Puts the parts together; no I/O."""
    changed, work_added = Signal(), Signal()
    runs = SqlRunStore(database, adapters.clock, changed)
    stores = _Stores(
        runs=runs,
        work=SqlWorkStore(database, adapters.clock, work_added),
        leases=SqlLeaseStore(database),
        contexts=RunContexts(runs),
        changed=changed,
        work_added=work_added,
    )
    reports = ReportService(
        runs,
        stores.work,
        stores.contexts,
        adapters.trajectory,
        adapters.gateway,
        adapters.launcher,
        adapters.clock,
    )
    manager = RunManager(
        runs,
        _driver(settings, stores, adapters, reports),
        # Who stops a run waits for the answer.
        RunCloser(adapters.trajectory, adapters.gateway, Patience(adapters.clock, _STOP_PATIENCE_S)),
        changed,
        max_active=settings.max_active_runs,
        auto_resume=settings.auto_resume,
    )
    application = Application(
        submission=SubmissionService(runs, adapters.catalog, adapters.artifacts, adapters.clock),
        queries=RunQueries(runs, adapters.trajectory),
        manager=manager,
        leases=_leases(settings, stores, adapters),
        steps=StepService(runs),
        watcher=EventWatcher(runs, changed),
        reports=reports,
        artifacts=ArtifactService(runs, adapters.artifacts, adapters.pushed),
        clock=adapters.clock,
    )
    announcer = DemandAnnouncer(runs, stores.work, stores.contexts, adapters.demand, work_added)
    return Parts(application, manager, Observer(runs, stores.leases, adapters.clock), announcer)


def _leases(settings: Settings, stores: _Stores, adapters: Adapters) -> LeaseService:
    return LeaseService(
        stores.runs,
        stores.work,
        stores.leases,
        stores.contexts,
        adapters.trajectory,
        adapters.clock,
        stores.work_added,
        ttl_s=settings.lease_ttl_s,
        batch=settings.lease_batch,
    )


def _driver(settings: Settings, stores: _Stores, adapters: Adapters, reports: ReportService) -> RunDriver:
    runs, work, changed = stores.runs, stores.work, stores.changed
    trajectory, clock, artifacts = adapters.trajectory, adapters.clock, adapters.artifacts
    addresses = Addresses(
        trajectory=settings.trajectory_address,
        gateway=settings.gateway_address,
        controller=settings.controller_address,
    )
    patiently = Patience(clock, settings.outage_patience_s)
    creator = GroupCreator(runs, work, trajectory)
    reconciler = Reconciler(runs, work, trajectory)
    jobs = TrainerJobs(runs, adapters.launcher, settings.trainer_restarts)
    training = Training(
        runs,
        work,
        trajectory,
        artifacts,
        creator,
        reconciler,
        jobs,
        clock,
        changed,
        addresses,
        patiently,
        max_refills=settings.max_refills,
        reopen_s=settings.reopen_timeout_s,
    )
    return RunDriver(
        runs,
        stores.contexts,
        artifacts,
        trajectory,
        adapters.gateway,
        RunCloser(trajectory, adapters.gateway, patiently),
        SealedFollower(work, trajectory, clock, changed),
        WarmStart(runs, artifacts, jobs, addresses),
        Serving(runs, artifacts, adapters.gateway),
        training,
        Evaluating(runs, work, adapters.gateway, creator, reconciler, clock, changed, patiently),
        reports,
        patiently,
    )


def _adapters(settings: Settings, channels: dict[str, grpc.aio.Channel]) -> Adapters:
    home = settings.data_dir.absolute().parent
    secret = settings.secret.get_secret_value()
    clock = SystemClock()
    return Adapters(
        catalog=GrpcCatalog(channels["catalog"]),
        trajectory=GrpcTrajectory(channels["trajectory"]),
        gateway=GrpcGateway(channels["gateway"], settings.publish_timeout_s),
        launcher=SubprocessLauncher(
            settings.data_dir.absolute() / "jobs",
            settings.logs_dir or home / "logs",
            secret,
            settings.trainer_processes,
            settings.trainer_threads,
        ),
        artifacts=LocalArtifacts(settings.base_dir, settings.checkpoints_dir or home / "checkpoints"),
        pushed=FolderArtifactStore(settings.base_dir, clock, settings.max_artifact_mb * 1024 * 1024),
        demand=GrpcSandboxDemand(channels["scheduler"]),
        clock=clock,
    )


async def build(settings: Settings) -> App:
    """The controller as an App. Brings its database up to date.

    Raises:
        QuotaExceeded, Unavailable: the database cannot be opened or written.
    """
    secret = settings.secret.get_secret_value()
    url = settings.resolved_database_url("controller")
    await asyncio.to_thread(migrate, url, "longshore_controller.store", settings.database_patience_s)
    database = Database(url)
    targets = {
        "catalog": settings.catalog_address,
        "trajectory": settings.trajectory_address,
        "gateway": settings.gateway_address,
        "scheduler": settings.scheduler_address,
    }
    channels = {name: open_channel(address, secret) for name, address in targets.items()}
    parts = wire(settings, database, _adapters(settings, channels))
    servicer = ControllerServicer(parts.application)

    async def stop() -> None:
        for channel in channels.values():
            await channel.close()
        await database.close()

    endpoint = GrpcEndpoint(
        settings.grpc_address,
        (SERVICE,),
        lambda server: rpc.add_ControllerServiceServicer_to_server(servicer, server),
        secret,
    )
    rest = [HttpEndpoint(settings.http_address, make_rest(parts.application, secret))] if settings.http_address else []
    return App(
        name="controller",
        grpc=[endpoint],
        http=rest,
        background=[parts.manager.serve, parts.observer.serve, parts.announcer.serve],
        on_start=parts.manager.recover,
        on_stop=stop,
    )
