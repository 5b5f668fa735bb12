"""Leases: capacity, heartbeats, lost and cancelled ones, drain, stop."""

import asyncio
from typing import Any

from longshore.rollout.v1 import rollout_pb2
from longshore_common.errors import Unavailable


async def test_no_more_attempts_run_than_the_capacity(stack: Any, wait_until: Any) -> None:
    stack.gateway.delay_s = 0.1
    for index in range(7):
        stack.add(f"g-{index}")
    worker = await stack.start(capacity=3)
    await wait_until(lambda: len(stack.scheduler.claims) == 3)
    status = await worker.Status(rollout_pb2.StatusRequest())
    assert (status.running, status.capacity) == (3, 3)
    await stack.ended(7)
    assert sorted(c.lease.attempt_id for c in stack.controller.completed) == [f"g-{i}" for i in range(7)]
    assert stack.catalog.asked <= 3


async def test_one_heartbeat_names_all_leases(stack: Any, wait_until: Any) -> None:
    stack.gateway.delay_s = 0.4
    stack.add("g-0")
    stack.add("g-1")
    await stack.start()
    await wait_until(lambda: any(len(beat.leases) == 2 for beat in stack.controller.heartbeats))
    await stack.ended(2)


async def test_a_lost_lease_stops_the_attempt_and_writes_nothing(stack: Any, wait_until: Any) -> None:
    stack.gateway.delay_s = 5.0
    stack.add("g-0", epoch=1)
    stack.add("g-1", epoch=1)
    worker = await stack.start()
    await wait_until(lambda: len(stack.gateway.calls) == 2)
    stack.controller.lost = [("g-0", 1)]
    await wait_until(lambda: stack.scheduler.deleted == ["sb-g-0-1"])
    status = await worker.Status(rollout_pb2.StatusRequest())
    assert list(status.attempt_ids) == ["g-1"]
    assert stack.controller.completed == []
    assert stack.trajectory.sealed == []
    assert "s-g-0-1" in stack.gateway.closed


async def test_a_lost_attempt_can_be_leased_again_at_once_with_a_new_epoch(stack: Any, wait_until: Any) -> None:
    stack.gateway.delay_s = 1.0
    stack.add("g-0", epoch=1)
    await stack.start()
    await wait_until(lambda: len(stack.gateway.calls) == 1)
    stack.controller.lost = [("g-0", 1)]
    stack.gateway.delay_s = 0.0
    stack.add("g-0", epoch=2)
    await stack.ended(1)
    assert [(seal.attempt_id, seal.lease_epoch) for seal in stack.trajectory.sealed] == [("g-0", 2)]
    await wait_until(lambda: sorted(stack.scheduler.deleted) == ["sb-g-0-1", "sb-g-0-2"])


async def test_a_cancelled_lease_goes_back_without_an_outcome(stack: Any, wait_until: Any) -> None:
    stack.gateway.delay_s = 5.0
    stack.add("g-0", epoch=4)
    await stack.start()
    await wait_until(lambda: stack.gateway.calls)
    stack.controller.cancelled = [("g-0", 4)]
    await stack.ended(1)
    # A stopped run is resumed with this attempt: freed without "retry" it would count as done.
    assert stack.controller.failures() == ["evicted"]
    assert stack.trajectory.sealed == []
    assert stack.scheduler.deleted == ["sb-g-0-4"]


async def test_a_sealed_attempt_is_not_lost_though_the_controller_has_freed_its_lease(
    stack: Any, wait_until: Any
) -> None:
    stack.scheduler.delete_delay_s = 0.4
    stack.add()
    worker = await stack.start()
    await wait_until(lambda: stack.trajectory.sealed)
    stack.controller.lost = [("g-0", 1)]
    await stack.ended()
    await asyncio.sleep(0.1)
    assert (await worker.Status(rollout_pb2.StatusRequest())).completed == 1


async def test_a_cancel_while_the_sandbox_is_being_made_still_deletes_it(stack: Any, wait_until: Any) -> None:
    stack.scheduler.claim_delay_s = 0.4
    stack.add()
    await stack.start()
    await wait_until(lambda: stack.scheduler.claims)
    stack.controller.cancelled = [("g-0", 1)]
    await wait_until(lambda: stack.scheduler.deleted == ["sb-g-0-1"])
    await wait_until(lambda: stack.gateway.closed == ["s-g-0-1"])


async def test_without_an_answered_heartbeat_a_lease_ends_by_its_own_clock(stack: Any, wait_until: Any) -> None:
    """A worker that is cut off from the controller must stop by itself: its attempts run elsewhere by now."""
    stack.gateway.delay_s = 5.0
    stack.controller.heartbeat_error = Unavailable("partition", retryable=False)
    stack.add(ttl_s=0.6)
    await stack.start()
    await wait_until(lambda: stack.scheduler.deleted)
    assert stack.controller.completed == []
    assert stack.trajectory.sealed == []


async def test_the_worker_outlives_a_controller_that_is_away(stack: Any, wait_until: Any) -> None:
    stack.controller.error = Unavailable("starting", retryable=False)
    await stack.start()
    await asyncio.sleep(0.2)
    stack.controller.error = None
    stack.add()
    await stack.ended()


async def test_drain_takes_no_new_leases_and_waits_for_the_running_ones(stack: Any, wait_until: Any) -> None:
    stack.gateway.delay_s = 0.3
    stack.add("g-0")
    worker = await stack.start(capacity=1)
    await wait_until(lambda: stack.gateway.calls)
    early = await worker.Drain(rollout_pb2.DrainRequest(timeout_s=0.01))
    assert early.still_running == 1
    answer = await worker.Drain(rollout_pb2.DrainRequest(timeout_s=5))
    assert answer.still_running == 0
    stack.add("g-1")
    await asyncio.sleep(0.3)
    assert [c.lease.attempt_id for c in stack.controller.completed] == ["g-0"]
    status = await worker.Status(rollout_pb2.StatusRequest())
    assert status.draining
    assert status.completed == 1


async def test_a_stop_deletes_sandboxes_and_leaves_the_leases_to_run_out(
    stack: Any, wait_until: Any, tmp_path: Any
) -> None:
    from longshore_common.app import running
    from longshore_rollout_worker.bootstrap import build

    stack.gateway.delay_s = 20.0
    stack.add("g-0")
    async with running(await build(stack.settings(drain_s=0.1))):
        await wait_until(lambda: stack.gateway.calls)
    assert stack.scheduler.deleted == ["sb-g-0-1"]
    assert stack.gateway.closed == ["s-g-0-1"]
    assert stack.controller.completed == []
