"""Picks the concrete parts of the sandbox scheduler. The only file that does."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from longshore.agent.v1 import agent_pb2, agent_pb2_grpc
from longshore.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from longshore_common.agent_client import AgentChannels
from longshore_common.app import App, GrpcEndpoint
from longshore_common.clock import Clock, SystemClock
from longshore_common.database import Database, migrate
from longshore_common.errors import InvalidSpec, Unavailable
from longshore_sandbox_scheduler.api.agent_servicer import AgentServicer
from longshore_sandbox_scheduler.api.agent_tokens import JwtAgentTokens
from longshore_sandbox_scheduler.api.sandbox_servicer import SandboxServicer
from longshore_sandbox_scheduler.clients.catalog import GrpcTasks
from longshore_sandbox_scheduler.domain.admission import Admission
from longshore_sandbox_scheduler.domain.model import Limits
from longshore_sandbox_scheduler.domain.pools import WarmPools
from longshore_sandbox_scheduler.domain.ports import AlwaysLeader, Leadership
from longshore_sandbox_scheduler.domain.runtime import Runtime
from longshore_sandbox_scheduler.domain.scheduler import Policy, Scheduler
from longshore_sandbox_scheduler.runtimes.bubblewrap.runtime import BubblewrapOptions, BubblewrapRuntime
from longshore_sandbox_scheduler.runtimes.docker.assembly import assemble as assemble_docker
from longshore_sandbox_scheduler.runtimes.pod.assembly import assemble
from longshore_sandbox_scheduler.settings import Settings
from longshore_sandbox_scheduler.store.sql import SqlRecords

_NAME = "sandbox-scheduler"


def _default_limits(settings: Settings) -> Limits:
    return Limits(
        cpus=settings.default_cpus,
        memory_mb=settings.default_memory_mb,
        storage_mb=settings.default_storage_mb,
        max_processes=settings.max_processes,
        max_file_mb=settings.max_file_mb,
    )


@dataclass(frozen=True)
class Parts:
    """A runtime with what goes along with it."""

    runtime: Runtime
    leadership: Leadership = field(default_factory=AlwaysLeader)
    pools: WarmPools | None = None
    background: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = ()
    on_stop: Callable[[], Awaitable[None]] | None = None


@dataclass(frozen=True)
class Common:
    """What every runtime may use."""

    clock: Clock
    tokens: JwtAgentTokens
    channels: AgentChannels


async def make_parts(settings: Settings, common: Common) -> Parts:
    """The runtime that the settings name. Raises InvalidSpec, Unavailable."""
    if settings.runtime == "pod":
        return await _pods(settings, common)
    if settings.runtime == "docker":
        return await _docker(settings, common)
    return Parts(
        BubblewrapRuntime(
            BubblewrapOptions(
                data_dir=settings.data_dir,
                cache_dir=settings.cache_dir,
                recipes=dict(settings.bases),
                uid_base=settings.sandbox_uid_base,
                build_limits=_default_limits(settings),
                use_cgroups=settings.use_cgroups,
            )
        )
    )


async def _pods(settings: Settings, common: Common) -> Parts:
    if not settings.secret.get_secret_value():
        raise InvalidSpec("pods need LONGSHORE_SECRET: agents' tokens are signed with a key made of it", field="secret")
    tokens = common.tokens
    pods = await assemble(settings.pods, common.clock, tokens.public_key, tokens.mint)
    pools = WarmPools(pods.runtime, common.clock, settings.pool, settings.max_sandboxes)
    return Parts(pods.runtime, pods.leadership, pools, (pods.leadership.run,), pods.api.close)


async def _docker(settings: Settings, common: Common) -> Parts:
    tokens, owner = common.tokens, _owner(settings)
    docker = await assemble_docker(
        settings.docker, common.clock, tokens.public_key, tokens.mint, common.channels, owner, settings.data_dir
    )
    return Parts(docker.runtime, on_stop=docker.api.close)


def _fixed_port(address: str) -> str:
    """Claims name the agent's address, so a free port must be known before the server starts."""
    host, _, port = address.rpartition(":")
    if port != "0":
        return address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.bind((host.strip("[]"), 0))
            return f"{host}:{probe.getsockname()[1]}"
    except OSError as error:
        raise Unavailable(f"agent_address {address} cannot be used: {error}", retryable=False) from error


def _owner(settings: Settings) -> str:
    """Who owns the sandboxes on record: all schedulers of a release together, or this one alone."""
    if settings.runtime == "pod":
        return f"pod:{settings.pods.namespace}:{settings.pods.release}"
    place = hashlib.sha256(str(settings.data_dir.absolute()).encode()).hexdigest()[:12]
    return f"{socket.gethostname()}:{place}"


def _policy(settings: Settings, agent_address: str) -> Policy:
    return Policy(
        default_limits=_default_limits(settings),
        claim_wait_s=settings.claim_wait_s,
        default_ttl_s=settings.default_ttl_s,
        max_life_s=settings.max_life_s,
        sweep_interval_s=settings.sweep_interval_s,
        orphan_sweep_interval_s=settings.orphan_sweep_interval_s,
        keep_ended_s=settings.keep_ended_s,
        owner=_owner(settings),
        agent_address=agent_address,
    )


async def build(settings: Settings, parts_of: Callable[[Settings, Common], Awaitable[Parts]] = make_parts) -> App:
    """The service, ready to start. Raises Unavailable when its address or database cannot be used."""
    url = settings.resolved_database_url(_NAME)
    await asyncio.to_thread(migrate, url, "longshore_sandbox_scheduler.store", settings.database_patience_s)
    database = Database(url)
    secret = settings.secret.get_secret_value()
    tasks = GrpcTasks(settings.catalog_address, secret, settings.build_timeout_s)
    agent_address = _fixed_port(settings.agent_address)
    clock = SystemClock()
    tokens = JwtAgentTokens(secret, lambda: clock.now_ms() / 1000)
    channels = AgentChannels()
    parts = await parts_of(settings, Common(clock, tokens, channels))
    runtime = parts.runtime
    scheduler = Scheduler(
        runtime,
        SqlRecords(database),
        tasks,
        clock,
        Admission(settings.max_sandboxes, settings.max_waiting),
        _policy(settings, settings.agent_advertise or agent_address),
        tokens,
        parts.leadership,
        parts.pools,
    )

    async def stop() -> None:
        await scheduler.stop()
        await channels.close()
        if parts.on_stop is not None:
            await parts.on_stop()
        await tasks.close()
        await database.close()

    def register_sandbox(server: grpc.aio.Server) -> None:
        sandbox_pb2_grpc.add_SandboxServiceServicer_to_server(SandboxServicer(scheduler), server)

    def register_agent(server: grpc.aio.Server) -> None:
        agent_pb2_grpc.add_AgentServiceServicer_to_server(AgentServicer(scheduler, runtime.name, channels), server)

    sandbox_name = sandbox_pb2.DESCRIPTOR.services_by_name["SandboxService"].full_name
    agent_name = agent_pb2.DESCRIPTOR.services_by_name["AgentService"].full_name
    return App(
        name=_NAME,
        grpc=(
            GrpcEndpoint(settings.grpc_address, (sandbox_name,), register_sandbox, secret),
            GrpcEndpoint(agent_address, (agent_name,), register_agent, None),
        ),
        background=(*scheduler.background(), *parts.background),
        on_start=scheduler.start,
        on_stop=stop,
    )
