"""Engines that somebody else runs: addresses are given, the base model must be served under its name."""

from __future__ import annotations

from dataclasses import dataclass

from longshore_common.clock import Clock
from longshore_common.errors import LongshoreError, Unavailable
from longshore_inference_gateway.clients.vllm import VllmClient
from longshore_inference_gateway.domain.models import ServedBase
from longshore_inference_gateway.engine_settings import EngineSettings


@dataclass(frozen=True, slots=True)
class Watch:
    """How often health is asked for, and after how long without a good answer an engine counts as lost; seconds."""

    interval_s: float
    dead_after_s: float


class ExternalEngine:
    """An engine at an address."""

    def __init__(
        self, engine_id: str, address: str, client: VllmClient, context_length: int, clock: Clock, watch: Watch
    ) -> None:
        self.engine_id = engine_id
        self.address = address
        self.pid = 0
        self.client = client
        self.context_length = context_length
        self._clock = clock
        self._watch = watch

    async def wait_failed(self) -> str:
        """Returns once health has been failing for too long: a busy engine answers late, a dead one never."""
        last_good = self._clock.monotonic()
        while True:
            await self._clock.sleep(self._watch.interval_s)
            now = self._clock.monotonic()
            if await self.client.healthy():
                last_good = now
            elif now - last_good >= self._watch.dead_after_s:
                return f"{self.address} has not been healthy for {now - last_good:.0f} s"

    async def stop(self) -> None:
        """Lets go of it."""
        await self.client.close()

    async def release(self) -> None:
        """Lets go of it."""
        await self.client.close()


class ExternalEngines:
    """A fixed serving set."""

    def __init__(self, addresses: tuple[str, ...], settings: EngineSettings, clock: Clock, watch: Watch) -> None:
        self._addresses = addresses
        self._settings = settings
        self._clock = clock
        self._watch = watch
        self.size = len(addresses)
        self.max_adapters = settings.engine_max_cpu_loras
        self.max_rank = settings.engine_max_lora_rank

    async def launch(self, index: int, base: ServedBase) -> ExternalEngine:
        """The engine at address number index.

        Raises:
            Unavailable: it does not answer, or does not serve the base.
        """
        address = self._addresses[index]
        client = VllmClient(
            address,
            connect_timeout_s=self._settings.engine_connect_timeout_s,
            call_timeout_s=self._settings.engine_call_timeout_s,
            admin_timeout_s=self._settings.engine_admin_timeout_s,
        )
        try:
            names, length = await client.served_names()
        except LongshoreError:
            await client.close()
            raise
        if base.name not in names:
            await client.close()
            raise Unavailable(
                f"engine {address} serves {', '.join(names) or 'nothing'}; "
                f"start it with --served-model-name {base.name}"
            )
        return ExternalEngine(f"engine-{index + 1}", address, client, length, self._clock, self._watch)

    async def free(self, base: ServedBase) -> None:
        """They serve what somebody else decided."""

    async def close(self) -> None:
        """Nothing is prepared."""
