"""Picks the concrete adapters: SQL store, vLLM engines, gRPC trajectory store, Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import grpc.aio
import zstandard

from longshore.gateway.v1 import gateway_pb2_grpc
from longshore_common.app import App, GrpcEndpoint, HttpEndpoint
from longshore_common.clock import Clock, SystemClock
from longshore_common.database import Database, migrate
from longshore_common.errors import InvalidSpec, LongshoreError
from longshore_common.grpc_client import open_channel
from longshore_common.log import get_logger
from longshore_inference_gateway import metrics
from longshore_inference_gateway.api.http import DataPort
from longshore_inference_gateway.api.servicer import SERVICE, GatewayServicer
from longshore_inference_gateway.clients.external_engine import ExternalEngines, Watch
from longshore_inference_gateway.clients.hosted_engine import HostedEngines
from longshore_inference_gateway.clients.local_engine import LocalEngines
from longshore_inference_gateway.clients.trajectory import TrajectoryClient
from longshore_inference_gateway.clients.vllm_process import Placement, VllmProcesses
from longshore_inference_gateway.clients.weights_folder import FolderWeights
from longshore_inference_gateway.domain.chat import Chat, ChatLimits
from longshore_inference_gateway.domain.engine_pool import EnginePool
from longshore_inference_gateway.domain.models import EngineState
from longshore_inference_gateway.domain.policies import Policies
from longshore_inference_gateway.domain.ports import EngineLauncher
from longshore_inference_gateway.domain.recovery import Recovery
from longshore_inference_gateway.domain.sessions import Sessions
from longshore_inference_gateway.settings import EngineMode, Settings
from longshore_inference_gateway.store.sql import SqlGatewayStore

NAME = "inference-gateway"
log = get_logger(__name__)


@dataclass(frozen=True)
class _Parts:
    store: SqlGatewayStore
    channel: grpc.aio.Channel
    launcher: EngineLauncher
    policies: Policies
    sessions: Sessions
    chat: Chat


async def build(settings: Settings) -> App:
    """The app, with its schema migrated and its state read.

    Raises:
        InvalidSpec: settings that do not fit together. Unavailable, QuotaExceeded: the database cannot be used.
    """
    url = settings.resolved_database_url(NAME)
    await asyncio.to_thread(migrate, url, "longshore_inference_gateway.store", settings.database_patience_s)
    clock = SystemClock()
    parts = _parts(settings, SqlGatewayStore(Database(url)), clock)
    http_address = _with_port(settings.http_address)
    base_url = await _advertised(settings, http_address) + "/v1"
    servicer = GatewayServicer(parts.sessions, parts.policies, base_url=base_url, default_ttl_s=settings.session_ttl_s)
    port = DataPort(parts.sessions, parts.chat, max_body_bytes=settings.max_body_bytes)
    http = [HttpEndpoint(http_address, port)]
    secret = settings.secret.get_secret_value() or None
    return App(
        name=NAME,
        grpc=[GrpcEndpoint(settings.grpc_address, (SERVICE,), _registration(servicer), secret)],
        http=http,
        background=[lambda: _bring_up_engines(settings, parts), lambda: _sweep(parts, clock), lambda: _measure(parts)],
        on_start=lambda: _restore(parts),
        on_stop=lambda: _stop(parts),
    )


def _registration(servicer: GatewayServicer) -> Callable[[grpc.aio.Server], None]:
    return lambda server: gateway_pb2_grpc.add_GatewayServiceServicer_to_server(servicer, server)


def _parts(settings: Settings, store: SqlGatewayStore, clock: Clock) -> _Parts:
    channel = open_channel(settings.trajectory_address, settings.secret.get_secret_value())
    sink = TrajectoryClient(channel, attempts=settings.append_attempts, timeout_s=settings.append_timeout_s)
    sessions = Sessions(store, clock)
    launcher = _launcher(settings, clock)
    policies = Policies(
        store=store,
        launcher=launcher,
        weights=FolderWeights(),
        clock=clock,
        make_pool=lambda: EnginePool(clock, per_engine=settings.engine_max_num_seqs, queue_limit=settings.queue_limit),
        in_use=sessions.in_use,
    )
    recovery = Recovery(sink, zstandard.ZstdDecompressor().decompress)
    sessions.recover = recovery
    chat = Chat(
        sink=sink,
        clock=clock,
        limits=ChatLimits(settings.queue_timeout_s, settings.engine_call_timeout_s),
        observer=metrics.PrometheusObserver(),
        recover=recovery,
        compress=lambda data: zstandard.ZstdCompressor(level=3).compress(data),
    )
    return _Parts(store, channel, launcher, policies, sessions, chat)


def _launcher(settings: Settings, clock: Clock) -> EngineLauncher:
    mode, addresses = settings.engine_mode, settings.engine_addresses
    if mode is not EngineMode.LOCAL and not addresses:
        raise InvalidSpec(f"engine_mode {mode} needs engine_addresses", field="engine_addresses")
    watch = Watch(settings.engine_probe_s, settings.engine_dead_after_s)
    if mode is EngineMode.HOSTED:
        return HostedEngines(addresses, settings.secret.get_secret_value(), settings, clock, watch)
    if mode is EngineMode.EXTERNAL:
        return ExternalEngines(addresses, settings, clock, watch)
    data_dir = settings.data_dir.absolute()
    log_dir = Path(settings.engine_log_dir) if settings.engine_log_dir else data_dir / "logs"
    # A key of its own: whoever shares this machine's loopback cannot call the engine past the gateway.
    place = Placement(data_dir / "engines", log_dir, api_key=secrets.token_urlsafe())
    return LocalEngines(settings, VllmProcesses(settings, place, clock))


async def _advertised(settings: Settings, http_address: str) -> str:
    url = (settings.advertised_url or f"http://{http_address}").rstrip("/")
    if not settings.advertise_ip:
        return url
    parts = urlsplit(url)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        address = await address_of(parts.hostname or "", settings.advertise_patience_s)
    except (OSError, ValueError) as error:
        raise InvalidSpec(
            f"advertise_ip: the host of advertised_url {url!r} has no address ({error}); "
            "name a Service or host that resolves from here, or give its address",
            field="advertised_url",
        ) from error
    netloc = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    return parts._replace(netloc=netloc).geturl()


async def address_of(host: str, patience_s: float) -> str:
    """The host's IP address. Raises OSError when it still has none after patience_s seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while True:
        try:
            found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except OSError as error:
            if loop.time() >= deadline:
                raise
            log.info("waiting for a name", host=host, error=str(error))
            await asyncio.sleep(1.0)
            continue
        # Sandboxes' policies are written for IPv4 where there is a choice.
        return str(min(found, key=lambda entry: entry[0] != socket.AF_INET)[4][0])


def _with_port(address: str) -> str:
    """The address with a real port: sessions are told the URL before a server could say which port it got."""
    host, _, port = address.rpartition(":")
    if port != "0":
        return address
    with socket.socket() as probe:
        probe.bind((host, 0))
        return f"{host}:{probe.getsockname()[1]}"


async def _restore(parts: _Parts) -> None:
    await parts.policies.restore()
    await parts.sessions.restore(parts.policies)


async def _bring_up_engines(settings: Settings, parts: _Parts) -> None:
    if settings.engine_prestart and isinstance(parts.launcher, LocalEngines):
        try:
            await parts.launcher.prepare()
        except LongshoreError as error:
            log.warning("no standby engine", error=error.message)
    await parts.policies.resume()


async def _sweep(parts: _Parts, clock: Clock) -> None:
    """Ends expired sessions, and unloads versions that nobody uses any more."""
    ended: set[str] = set()
    parts.sessions.on_close = ended.add
    while True:
        await clock.sleep(1.0)
        await parts.sessions.close_expired()
        while ended:
            await parts.policies.unload_unused(ended.pop())


async def _measure(parts: _Parts) -> None:
    interval = 1.0
    loop = asyncio.get_running_loop()
    while True:
        before = loop.time()
        await asyncio.sleep(interval)
        metrics.LOOP_LAG.set(max(0.0, loop.time() - before - interval))
        metrics.SESSIONS.set(len(parts.sessions))
        metrics.show_versions({name: alias.record.current_version for name, alias in parts.policies.aliases.items()})
        pools = [alias.engines.pool for alias in parts.policies.aliases.values() if alias.engines is not None]
        metrics.IN_FLIGHT.set(sum(pool.in_flight for pool in pools))
        metrics.QUEUED.set(sum(pool.waiting for pool in pools))
        states = [slot.state for pool in pools for slot in pool.slots]
        for state in EngineState:
            metrics.ENGINES.labels(state.value).set(states.count(state))


async def _stop(parts: _Parts) -> None:
    await parts.policies.close()
    with contextlib.suppress(LongshoreError):
        await parts.channel.close()
    await parts.store.close()
