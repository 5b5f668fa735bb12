"""How the agent of a pod is reached: by the pod's address, or through the API server."""

from __future__ import annotations

from typing import Protocol

from longshore_sandbox_scheduler.domain.runtime import RemoteAgent


class AgentWays(Protocol):
    """One per runtime."""

    @property
    def runtime_name(self) -> str:
        """Name of a runtime whose agents are reached so."""
        ...

    def way_in(self, sandbox_id: str, instance: str, address: str) -> RemoteAgent:
        """The way to the agent of a pod that runs at host:port. The same one for the same instance."""
        ...

    def forget(self, instance: str) -> None:
        """That pod is gone. Unknown: no effect."""
        ...

    async def close(self) -> None:
        """Frees all."""
        ...


class PodAddresses:
    """By pod address: callers go there themselves."""

    runtime_name = "pod"

    def way_in(self, sandbox_id: str, instance: str, address: str) -> RemoteAgent:
        return RemoteAgent(address)

    def forget(self, instance: str) -> None:
        return

    async def close(self) -> None:
        return
