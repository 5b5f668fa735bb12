"""Long polls and live streams over a store that only wakes its own process."""

from __future__ import annotations

from collections.abc import AsyncIterator

from longshore_common.clock import Clock
from longshore_trajectory_store.domain.attempts import Attempt
from longshore_trajectory_store.domain.batches import TakeRequest, TakeResult
from longshore_trajectory_store.domain.groups import Group
from longshore_trajectory_store.domain.ports import TrajectoryStore

_PAGE = 500


async def take_when_ready(
    store: TrajectoryStore, request: TakeRequest, wait_s: float, clock: Clock, recheck_s: float | None
) -> TakeResult:
    """The batch once there are enough groups, closed, or pending after wait_s seconds.

    Args:
        recheck_s: look again this often although nothing changed here; None: only this process writes.
    """
    deadline = clock.monotonic() + wait_s
    while True:
        seen = store.ledger.generation(request.run_id)
        result = await store.take_batch(request)
        left = deadline - clock.monotonic()
        if result.batch is not None or result.closed or left <= 0:
            return result
        await store.ledger.wait(request.run_id, seen, left if recheck_s is None else min(left, recheck_s))


async def follow_sealed(
    store: TrajectoryStore, run_id: str, after: int, recheck_s: float | None
) -> AsyncIterator[tuple[Attempt, Group]]:
    """Sealed and discarded attempts by sequence: first those there are, then live. Ends when cancelled."""
    while True:
        seen = store.sealed.generation(run_id)
        found = await store.sealed_after(run_id, after, _PAGE)
        for attempt, group in found:
            yield attempt, group
            after = attempt.sequence
        if len(found) < _PAGE:
            await store.sealed.wait(run_id, seen, recheck_s)
