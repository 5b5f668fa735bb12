"""Engines that engine hosts run for us: ordered, watched and stopped over gRPC, called over HTTP at the same host."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import grpc.aio

from longshore.engine.v1 import engine_pb2 as pb
from longshore.engine.v1 import engine_pb2_grpc
from longshore_common.clock import Clock
from longshore_common.errors import (
    DeadlineExceeded,
    ErrorCode,
    LongshoreError,
    QuotaExceeded,
    Unavailable,
    from_code,
)
from longshore_common.grpc_client import open_channel
from longshore_common.log import get_logger
from longshore_inference_gateway.clients.external_engine import Watch
from longshore_inference_gateway.clients.vllm import VllmClient, api_key_of
from longshore_inference_gateway.domain.models import ServedBase
from longshore_inference_gateway.engine_settings import EngineSettings

log = get_logger(__name__)

_STARTING = (pb.ENGINE_STATE_VERIFYING, pb.ENGINE_STATE_STARTING)
_POLL_S = 0.2


class EngineHostClient:
    """One engine host. Calls raise Unavailable or DeadlineExceeded when it does not answer within timeout_s."""

    def __init__(self, address: str, secret: str, timeout_s: float) -> None:
        self.address = address
        self._channel: grpc.aio.Channel = open_channel(address, secret, timeout_s=timeout_s)
        self._stub = engine_pb2_grpc.EngineHostServiceStub(self._channel)

    async def serve(self, base: ServedBase) -> pb.ServeResponse:
        """Orders; returns at once."""
        return await self._stub.Serve(pb.ServeRequest(base_name=base.name, uri=base.folder, digest=base.digest))

    async def status(self) -> pb.EngineStatus:
        """What it does now."""
        return (await self._stub.Status(pb.StatusRequest())).status

    async def stop(self, base_name: str, instance: str = "") -> None:
        """Ends what serves base_name; a host that does not answer is left alone, with a warning."""
        try:
            # An engine has seconds to end before it is killed.
            await self._stub.Stop(pb.StopRequest(base_name=base_name, instance=instance), timeout=30)
        except LongshoreError as error:
            log.warning("engine not stopped", host=self.address, base=base_name, error=error.message)

    def http_address(self, port: int) -> str:
        """Where vLLM listens."""
        return f"{self.address.rpartition(':')[0]}:{port}"

    async def close(self) -> None:
        """Drops the connection."""
        await self._channel.close()


@dataclass(frozen=True, slots=True)
class _Engine:
    """Which engine a handle stands for."""

    engine_id: str
    base: ServedBase
    status: pb.EngineStatus


class HostedEngine:
    """A ready engine of a host."""

    def __init__(self, engine: _Engine, host: EngineHostClient, client: VllmClient, clock: Clock, watch: Watch) -> None:
        self.engine_id = engine.engine_id
        self.address = host.http_address(engine.status.http_port)
        self.pid = engine.status.pid
        self.client = client
        self.context_length = engine.status.context_length
        self._base_name = engine.base.name
        self._instance = engine.status.instance
        self._host = host
        self._clock = clock
        self._watch = watch

    async def wait_failed(self) -> str:
        """Returns once its host says that it ended, or nothing has been heard of it for too long."""
        last_good = self._clock.monotonic()
        while True:
            await self._clock.sleep(self._watch.interval_s)
            why = await self._ended()
            if why:
                return why
            now = self._clock.monotonic()
            if await self.client.healthy():
                last_good = now
            elif now - last_good >= self._watch.dead_after_s:
                return f"{self.address} has not been healthy for {now - last_good:.0f} s"

    async def _ended(self) -> str:
        try:
            status = await self._host.status()
        except LongshoreError:
            # Busy, or gone: the engine's own health decides.
            return ""
        if status.instance == self._instance and status.state == pb.ENGINE_STATE_READY:
            return ""
        return _explain(self._host.address, status)

    async def stop(self) -> None:
        """Ends it, unless another has taken its place."""
        await self.client.close()
        await self._host.stop(self._base_name, self._instance)

    async def release(self) -> None:
        """Lets go of it; it goes on serving."""
        await self.client.close()


class HostedEngines:
    """An EngineLauncher over a fixed set of engine hosts, all of which serve one base."""

    def __init__(
        self, addresses: tuple[str, ...], secret: str, settings: EngineSettings, clock: Clock, watch: Watch
    ) -> None:
        timeout_s = settings.engine_connect_timeout_s
        self._hosts = [EngineHostClient(address, secret, timeout_s) for address in addresses]
        self._api_key = api_key_of(secret)
        self._settings = settings
        self._clock = clock
        self._watch = watch
        self._holder: ServedBase | None = None
        self.size = len(addresses)
        self.max_adapters = settings.engine_max_cpu_loras
        self.max_rank = settings.engine_max_lora_rank

    async def launch(self, index: int, base: ServedBase) -> HostedEngine:
        """See EngineLauncher. Waits for a host that is not there yet, up to engine_start_timeout_s."""
        if self._holder not in (None, base):
            raise QuotaExceeded(
                f"all {self.size} engine hosts serve {self._holder.name if self._holder else ''}: {base.name} can be "
                "served once that run ends (its alias is retired)",
                which="engine hosts",
            )
        self._holder = base
        host = self._hosts[index]
        status = await self._started(host, await self._order(host, base))
        if status.base_name != base.name or status.state != pb.ENGINE_STATE_READY:
            raise _failure(host.address, status)
        client = self._client(host.http_address(status.http_port), base, status)
        try:
            await client.served_names()
        except BaseException:
            await client.close()
            raise
        log.info("engine ready", engine=host.address, base=base.name, instance=status.instance)
        return HostedEngine(_Engine(f"engine-{index + 1}", base, status), host, client, self._clock, self._watch)

    async def free(self, base: ServedBase) -> None:
        """Stops base wherever it is served or starting."""
        if self._holder != base:
            return
        await asyncio.gather(*(host.stop(base.name) for host in self._hosts))
        self._holder = None

    async def close(self) -> None:
        """Engines go on; connections do not."""
        self._holder = None
        await asyncio.gather(*(host.close() for host in self._hosts))

    async def _order(self, host: EngineHostClient, base: ServedBase) -> pb.EngineStatus:
        deadline = self._clock.monotonic() + self._settings.engine_start_timeout_s
        while True:
            try:
                answer = await host.serve(base)
            except (Unavailable, DeadlineExceeded) as error:
                if self._clock.monotonic() >= deadline:
                    raise Unavailable(f"engine host {host.address} does not answer: {error.message}") from error
                await self._clock.sleep(self._watch.interval_s)
                continue
            self._note(host, answer.limits)
            return answer.status

    async def _started(self, host: EngineHostClient, status: pb.EngineStatus) -> pb.EngineStatus:
        """The host limits how long a start may take: big models need minutes."""
        heard = self._clock.monotonic()
        instance = status.instance
        while status.instance == instance and status.state in _STARTING:
            await self._clock.sleep(_POLL_S)
            try:
                status = await host.status()
                heard = self._clock.monotonic()
            except (Unavailable, DeadlineExceeded) as error:
                if self._clock.monotonic() - heard >= self._watch.dead_after_s:
                    raise Unavailable(f"engine host {host.address} was lost while starting: {error.message}") from error
        return status

    def _note(self, host: EngineHostClient, limits: pb.EngineLimits) -> None:
        self.max_adapters = min(self.max_adapters, limits.max_adapters)
        self.max_rank = min(self.max_rank, limits.max_lora_rank)
        if limits.max_num_seqs < self._settings.engine_max_num_seqs:
            log.warning(
                "the engine host runs fewer calls at once than the gateway sends; the rest waits in vLLM, unmeasured",
                host=host.address,
                runs=limits.max_num_seqs,
                sent=self._settings.engine_max_num_seqs,
            )

    def _client(self, address: str, base: ServedBase, status: pb.EngineStatus) -> VllmClient:
        settings = self._settings
        return VllmClient(
            address,
            connect_timeout_s=settings.engine_connect_timeout_s,
            call_timeout_s=settings.engine_call_timeout_s,
            admin_timeout_s=settings.engine_admin_timeout_s,
            base_apart=base.name if status.base_apart else None,
            api_key=self._api_key,
        )


def _failure(address: str, status: pb.EngineStatus) -> LongshoreError:
    if status.state == pb.ENGINE_STATE_FAILED:
        return from_code(ErrorCode(status.failure.code), _explain(address, status), {}, retryable=False)
    return Unavailable(_explain(address, status))


def _explain(address: str, status: pb.EngineStatus) -> str:
    if status.state == pb.ENGINE_STATE_FAILED:
        return f"engine host {address}: {status.failure.message}"
    if status.state == pb.ENGINE_STATE_IDLE:
        return f"engine host {address} serves nothing: it was restarted (killed for memory?) or told to stop"
    return f"engine host {address} was told to serve {status.base_name}"
