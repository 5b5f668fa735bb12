"""vLLM as a child process: started, watched, ended. The gateway's local engines and engine hosts use it alike."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from longshore_common.child import Child, spawn
from longshore_common.clock import Clock
from longshore_common.errors import Internal
from longshore_common.log import get_logger
from longshore_inference_gateway.clients import vllm_options
from longshore_inference_gateway.clients.vllm import VllmClient
from longshore_inference_gateway.domain.models import ServedBase
from longshore_inference_gateway.engine_settings import EngineSettings

log = get_logger(__name__)

PROGRAM = (sys.executable, "-m", "longshore_inference_gateway.engine_process")
"""Waits for the file named by its last argument, a JSON list of vLLM's arguments, and becomes vLLM's API server."""

_POLL_S = 0.1
_GRACE_S = 5.0
_PROGRESS_S = 10.0
_LOG_LINES = 15
_ANY = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "::": "[::1]"}


class VllmProcess:
    """A vLLM child that is ready; an EngineHandle."""

    def __init__(
        self, standby: _Standby, address: str, client: VllmClient, context_length: int, drain_s: float
    ) -> None:
        self.engine_id = standby.name
        self.address = address
        self.client = client
        self.context_length = context_length
        self._child = standby.child
        self._drain_s = drain_s

    @property
    def pid(self) -> int:
        """Process id of the child's guard."""
        return self._child.pid

    async def wait_failed(self) -> str:
        """Returns how the child ended."""
        status = await self._child.wait()
        return f"exit status {status}; its log ends: {_last_lines(self._child)}"

    async def stop(self) -> None:
        """Ends the child and everything below it, once calls in flight are answered or drain_s is over."""
        await self.client.close()
        await self._child.stop(self._drain_s + _GRACE_S)

    async def release(self) -> None:
        """Like stop: a child cannot outlive us."""
        await self.stop()


@dataclass(frozen=True)
class Placement:
    """Where children work. log_dir None: each line of their output goes to our log."""

    work_dir: Path
    log_dir: Path | None = None
    api_key: str | None = None
    program: Sequence[str] = PROGRAM


class VllmProcesses:
    """Starts vLLM as a child. With `prepare`, a process that has everything imported waits for the first model."""

    def __init__(self, settings: EngineSettings, placement: Placement, clock: Clock) -> None:
        self._settings = settings
        self._placement = placement
        self._clock = clock
        self._numbers = itertools.count(1)
        self._standby: _Standby | None = None

    @property
    def base_apart(self) -> bool:
        """Whether calls of the base must not share a batch with those of adapters; see batch_kinds."""
        return vllm_options.on_cpu(self._settings)

    async def prepare(self) -> None:
        """Starts a standby process; the next start takes it. Raises Unavailable."""
        if self._standby is None or self._standby.child.returncode is not None:
            self._standby = await self._spawn()

    async def start(self, base: ServedBase, host: str, port: int) -> VllmProcess:
        """An engine that is ready on host:port.

        Raises:
            Internal: it ended or was not ready in time; the message holds the end of its log.
            InvalidSpec: the model folder cannot be read.
        """
        started = self._clock.monotonic()
        order = await asyncio.to_thread(vllm_options.arguments, self._settings, base, host, port)
        await self.prepare()
        standby, self._standby = self._standby, None
        assert standby is not None
        address = f"{_ANY.get(host, host)}:{port}"
        client = self._client(address, base)
        try:
            await asyncio.to_thread(standby.order, order)
            await self._wait_ready(standby.child, client, base.name)
            names, length = await client.served_names()
            if base.name not in names:
                raise Internal(f"{address} serves {', '.join(names)}, not {base.name}: something else listens there")
        except BaseException:
            await client.close()
            await standby.child.stop()
            raise
        seconds = round(self._clock.monotonic() - started, 1)
        log.info("engine ready", engine=standby.name, base=base.name, address=address, seconds=seconds)
        return VllmProcess(standby, address, client, length, self._settings.engine_drain_s)

    async def close(self) -> None:
        """Ends a standby that was not taken."""
        standby, self._standby = self._standby, None
        if standby is not None:
            await standby.child.stop()

    def _client(self, address: str, base: ServedBase) -> VllmClient:
        settings = self._settings
        return VllmClient(
            address,
            connect_timeout_s=settings.engine_connect_timeout_s,
            call_timeout_s=settings.engine_call_timeout_s,
            admin_timeout_s=settings.engine_admin_timeout_s,
            base_apart=base.name if self.base_apart else None,
            api_key=self._placement.api_key,
        )

    async def _spawn(self) -> _Standby:
        place = self._placement
        name = f"engine-{next(self._numbers)}"
        orders = place.work_dir / f"{name}-{os.getpid()}.json"
        await asyncio.to_thread(_clear, orders)
        environment = vllm_options.environment(self._settings, place.work_dir, place.api_key)
        log_path = place.log_dir / f"{name}.log" if place.log_dir is not None else None
        on_line = _logged(name) if place.log_dir is None else None
        child = await spawn(name, [*place.program, str(orders)], env=environment, log_path=log_path, on_line=on_line)
        return _Standby(name, child, orders)

    async def _wait_ready(self, child: Child, client: VllmClient, base_name: str) -> None:
        started = reported = self._clock.monotonic()
        while not await client.healthy():
            now = self._clock.monotonic()
            if child.returncode is not None:
                status = await child.wait()
                raise Internal(f"the engine for {base_name} ended with status {status} while starting; {_log(child)}")
            if now - started > self._settings.engine_start_timeout_s:
                raise Internal(
                    f"the engine for {base_name} was not ready after {self._settings.engine_start_timeout_s:g} s; "
                    f"{_log(child)}"
                )
            if now - reported > _PROGRESS_S:
                reported = now
                log.info("engine is starting", engine=child.name, base=base_name, seconds=round(now - started))
            await self._clock.sleep(_POLL_S)


@dataclass(slots=True)
class _Standby:
    name: str
    child: Child
    orders: Path

    def order(self, arguments: list[str]) -> None:
        """Tells the waiting process what to serve."""
        partial = self.orders.with_suffix(".partial")
        partial.write_text(json.dumps(arguments))
        partial.replace(self.orders)


def _logged(name: str) -> Callable[[str], None]:
    engine_log = get_logger("vllm")
    return lambda line: engine_log.info(line, engine=name)


def _clear(orders: Path) -> None:
    orders.parent.mkdir(parents=True, exist_ok=True)
    orders.unlink(missing_ok=True)


def _log(child: Child) -> str:
    where = f" {child.log_path}" if child.log_path is not None else ""
    return f"its log{where} ends: {_last_lines(child)}"


def _last_lines(child: Child) -> str:
    return child.log_tail(_LOG_LINES).strip() or "(empty)"
