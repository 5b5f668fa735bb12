"""Picks the concrete adapters: SQLite or Postgres, the machine's clock, gRPC."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
from sqlalchemy import event

from longshore.trajectory.v1 import trajectory_pb2_grpc as pb_grpc
from longshore_common.app import App, GrpcEndpoint
from longshore_common.clock import SystemClock
from longshore_common.database import Database, migrate
from longshore_trajectory_store.api.servicer import SERVICE, TrajectoryServicer
from longshore_trajectory_store.settings import Settings
from longshore_trajectory_store.store.observing import StoreObserver
from longshore_trajectory_store.store.sql_store import SqlTrajectoryStore

NAME = "trajectory-store"


def open_database(url: str) -> Database:
    """The database with full durability: a commit survives a power cut, not only a killed process."""
    database = Database(url)
    if database.sqlite:
        event.listen(database.engine.sync_engine, "connect", _sync_on_commit)
    return database


def _sync_on_commit(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


async def build(settings: Settings) -> App:
    """The app, with its schema migrated.

    Raises:
        QuotaExceeded: the disk is full. Unavailable: the database cannot be reached.
    """
    url = settings.resolved_database_url(NAME)
    await asyncio.to_thread(migrate, url, "longshore_trajectory_store.store", settings.database_patience_s)
    database = open_database(url)
    clock = SystemClock()
    store = SqlTrajectoryStore(database, clock)
    servicer = TrajectoryServicer(store, clock, None if database.sqlite else settings.recheck_s)

    def register(server: grpc.aio.Server) -> None:
        pb_grpc.add_TrajectoryServiceServicer_to_server(servicer, server)

    secret = settings.secret.get_secret_value() or None
    endpoint = GrpcEndpoint(settings.grpc_address, (SERVICE,), register, secret)
    observer = StoreObserver(database, clock)
    return App(name=NAME, grpc=[endpoint], background=[observer.serve], on_stop=store.close)
