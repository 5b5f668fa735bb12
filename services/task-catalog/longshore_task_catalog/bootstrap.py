"""Picks the concrete adapters: SQLite or Postgres, the object store, gRPC to scheduler and verifier."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import grpc.aio

from longshore.catalog.v1 import catalog_pb2_grpc
from longshore.sandbox.v1 import sandbox_pb2_grpc
from longshore.verifier.v1 import verifier_pb2_grpc
from longshore_common.agent_client import AgentChannels
from longshore_common.app import App, GrpcEndpoint
from longshore_common.clock import SystemClock
from longshore_common.database import Database, migrate
from longshore_common.grpc_client import open_channel
from longshore_common.objects import ObjectStore
from longshore_task_catalog.api.servicer import SERVICE, CatalogServicer
from longshore_task_catalog.clients.probe_runner import GrpcProbeRunner, UnconfiguredProbeRunner
from longshore_task_catalog.domain.catalog import Catalog
from longshore_task_catalog.domain.ports import ProbeRunner
from longshore_task_catalog.domain.probe import Prober
from longshore_task_catalog.settings import Settings
from longshore_task_catalog.store.bundles import ObjectBundleStore
from longshore_task_catalog.store.sql_store import SqlTaskStore

NAME = "task-catalog"


def _runner(settings: Settings, closing: AsyncExitStack) -> ProbeRunner:
    if not settings.scheduler_address or not settings.verifier_address:
        return UnconfiguredProbeRunner()
    secret = settings.secret.get_secret_value()
    scheduler = open_channel(settings.scheduler_address, secret)
    verifier = open_channel(settings.verifier_address, secret)
    agents = AgentChannels()
    for close in (scheduler.close, verifier.close, agents.close):
        closing.push_async_callback(close)
    return GrpcProbeRunner(
        sandbox_pb2_grpc.SandboxServiceStub(scheduler),
        verifier_pb2_grpc.VerifierServiceStub(verifier),
        agents,
        settings.claim_timeout_s,
    )


async def build(settings: Settings) -> App:
    """The app, with its schema migrated.

    Raises:
        QuotaExceeded: the disk is full. Unavailable: the database cannot be reached.
    """
    url = settings.resolved_database_url(NAME)
    await asyncio.to_thread(migrate, url, "longshore_task_catalog.store", settings.database_patience_s)
    closing = AsyncExitStack()
    store = SqlTaskStore(Database(url))
    closing.push_async_callback(store.close)
    bundles = ObjectBundleStore(ObjectStore(settings.resolved_objects_url()))
    clock = SystemClock()
    prober = Prober(store, bundles, _runner(settings, closing), clock)
    concurrency = (settings.probe_concurrency, settings.max_probe_concurrency)
    servicer = CatalogServicer(Catalog(store, bundles, prober, clock, settings.default_limits(), concurrency))

    def register(server: grpc.aio.Server) -> None:
        catalog_pb2_grpc.add_CatalogServiceServicer_to_server(servicer, server)

    secret = settings.secret.get_secret_value() or None
    endpoint = GrpcEndpoint(settings.grpc_address, (SERVICE,), register, secret)
    return App(name=NAME, grpc=[endpoint], on_stop=closing.aclose)
