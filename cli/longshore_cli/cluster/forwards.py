"""Port forwards that stay: a kubectl child per target, started again whenever it ends."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from longshore_cli.cluster.kubectl import Kubectl
from longshore_cli.cluster.release import Port
from longshore_cli.errors import CliError
from longshore_cli.local.settings import HOST
from longshore_cli.output import note
from longshore_common.child import Child, spawn

_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 5.0
_STEADY_S = 30.0
"""A forward that held for so long starts over with short pauses."""
_STOP_S = 2.0


class _Forward:
    """The ports of one target. kubectl picks a pod when it starts, so the pod's end is the child's end."""

    def __init__(self, kubectl: Kubectl, target: str, ports: Sequence[tuple[int, int]]) -> None:
        """ports: (here, there)."""
        self._kubectl = kubectl
        self._target = target
        self._ports = ports
        self._open = 0
        self.said = ""
        self.ready = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        pause_s = _FIRST_PAUSE_S
        while True:
            began = time.monotonic()
            await self._once()
            if time.monotonic() - began > _STEADY_S:
                pause_s = _FIRST_PAUSE_S
            if self.ready.is_set():
                note(f"{self._target}: the forward ended ({self.said or 'no reason given'}); connecting again")
            await asyncio.sleep(pause_s)
            pause_s = min(_MAX_PAUSE_S, 2 * pause_s)

    async def _once(self) -> None:
        self._open = 0
        pairs = [f"{here}:{there}" for here, there in self._ports]
        argv = self._kubectl.argv("port-forward", f"--address={HOST}", self._target, *pairs)
        child: Child = await spawn(f"port-forward {self._target}", argv, on_line=self._take)
        try:
            await child.wait()
        finally:
            await child.stop(_STOP_S)

    def _take(self, line: str) -> None:
        if line.startswith("Forwarding from "):
            self._open += 1
            if self._open == len(self._ports):
                self.ready.set()
        elif not line.startswith("Handling connection"):
            self.said = line


@contextlib.asynccontextmanager
async def forwarded(kubectl: Kubectl, ports: dict[Port, int], patience_s: float) -> AsyncIterator[None]:
    """Forwards each port to its number here for the length of the block.

    Raises:
        CliError: not all of them stand within patience_s seconds.
    """
    targets: dict[str, list[tuple[int, int]]] = {}
    for port, here in ports.items():
        targets.setdefault(port.target, []).append((here, port.number))
    forwards = {target: _Forward(kubectl, target, pairs) for target, pairs in targets.items()}
    tasks = [asyncio.create_task(forward.run()) for forward in forwards.values()]
    try:
        await _all_ready(forwards, tasks, patience_s)
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _all_ready(forwards: dict[str, _Forward], tasks: Sequence[asyncio.Task[None]], patience_s: float) -> None:
    ready = asyncio.gather(*(forward.ready.wait() for forward in forwards.values()))
    waited: list[asyncio.Future[Any]] = [ready, *tasks]
    await asyncio.wait(waited, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        if task.done():  # kubectl itself is gone.
            task.result()
    if ready.done():
        return
    ready.cancel()
    missing = [(target, forward.said) for target, forward in forwards.items() if not forward.ready.is_set()]
    target, said = missing[0]
    raise CliError(
        f"{target} cannot be reached ({len(missing)} of {len(forwards)} cannot): {said or 'kubectl says nothing'}; "
        "see `kubectl get pods` in the release's namespace"
    )
