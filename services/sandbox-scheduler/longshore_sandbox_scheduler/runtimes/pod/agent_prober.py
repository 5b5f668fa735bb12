"""Whether the agent of a pod answers, and is the one that is meant."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from longshore.agent.v1 import agent_pb2
from longshore_common.agent_client import AgentChannels
from longshore_common.errors import LongshoreError, PermissionDenied

_FIRST_PAUSE_S = 0.01
_MAX_PAUSE_S = 0.5
_CALL_S = 2.0


class AgentProber(Protocol):
    """Waits for agents."""

    async def answers(self, address: str, sandbox_id: str, instance: str) -> None:
        """Returns once the agent of this incarnation answers; cancelled by who waits no longer."""
        ...


class HealthProber:
    """By the agent's own Health. mint: makes a token for a sandbox and an instance."""

    def __init__(self, channels: AgentChannels, mint: Callable[[str, str], str]) -> None:
        self._channels = channels
        self._mint = mint

    async def answers(self, address: str, sandbox_id: str, instance: str) -> None:
        """See the protocol. Raises PermissionDenied when another one answers."""
        metadata = (("authorization", f"Bearer {self._mint(sandbox_id, instance)}"),)
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                stub = self._channels.stub(address)
                found = await stub.Health(agent_pb2.HealthRequest(), metadata=metadata, timeout=_CALL_S)
            except PermissionDenied:
                raise
            except LongshoreError:
                await asyncio.sleep(pause_s)
                pause_s = min(_MAX_PAUSE_S, 2 * pause_s)
                continue
            if (found.sandbox_id, found.instance) != (sandbox_id, instance):
                raise PermissionDenied(f"the agent at {address} is of {found.sandbox_id}, not of {sandbox_id}")
            return
