"""Engines as child processes of the gateway, on its own machine."""

from __future__ import annotations

import asyncio
import socket

from longshore_inference_gateway.clients.vllm_process import VllmProcess, VllmProcesses
from longshore_inference_gateway.domain.models import ServedBase
from longshore_inference_gateway.engine_settings import EngineSettings

_LOOPBACK = "127.0.0.1"


class LocalEngines:
    """An EngineLauncher: each alias gets a child of its own."""

    def __init__(self, settings: EngineSettings, processes: VllmProcesses) -> None:
        self._processes = processes
        self.size = 1
        self.max_adapters = settings.engine_max_cpu_loras
        self.max_rank = settings.engine_max_lora_rank

    async def prepare(self) -> None:
        """Starts a standby process; the next launch takes it."""
        await self._processes.prepare()

    async def launch(self, index: int, base: ServedBase) -> VllmProcess:
        """See EngineLauncher."""
        port = await asyncio.to_thread(free_port, _LOOPBACK)
        return await self._processes.start(base, _LOOPBACK, port)

    async def free(self, base: ServedBase) -> None:
        """A child ends with its handle."""

    async def close(self) -> None:
        """Ends a standby that was not taken."""
        await self._processes.close()


def free_port(host: str) -> int:
    """A port of host that is free now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
