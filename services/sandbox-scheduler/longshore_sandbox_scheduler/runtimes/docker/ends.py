"""Why a container did not start or has ended, from what the engine shows of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longshore_common.errors import LongshoreError
from longshore_sandbox_scheduler.domain.model import EndReason
from longshore_sandbox_scheduler.domain.runtime import SandboxEnd, SandboxFailed
from longshore_sandbox_scheduler.runtimes.docker.engine_api import EngineError

ENDING_EVENTS = frozenset({"die", "died", "destroy", "remove"})
"""Docker says die and destroy, Podman says died and remove."""
_SIGNALLED = 128
_SIGKILL = 9


def end_of(container: Mapping[str, Any] | None) -> SandboxEnd | None:
    """How a container ended, from its inspection (None: there is no such container); None while it runs."""
    if container is None:
        return SandboxEnd(EndReason.DELETED, "somebody else removed its container")
    state = container["State"]
    if state.get("Running") or state.get("Status") in ("created", "configured", "initialized", "paused", "restarting"):
        return None
    code = int(state.get("ExitCode", 0))
    killed = code == _SIGNALLED + _SIGKILL
    # Set also when only a command was killed for memory: then the init lived on, and ended otherwise.
    if state.get("OOMKilled") and killed:
        return SandboxEnd(EndReason.OOM, "the kernel killed its init for memory")
    detail = "its init was killed from outside (SIGKILL)" if killed else f"its init ended with status {code}"
    return SandboxEnd(EndReason.LOST, f"{detail}: {state['Error']}" if state.get("Error") else detail)


def create_error(sandbox_id: str, error: EngineError) -> LongshoreError:
    """What a refused creation or start means for the claim."""
    if error.status == 404 and "image" in error.message.lower():
        return SandboxFailed(EndReason.IMAGE_PULL, f"sandbox {sandbox_id}: {error.message}")
    if error.retryable:
        return error
    return SandboxFailed(EndReason.START_FAILED, f"sandbox {sandbox_id} was refused: {error.message}")
