"""The worker as its own process."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture
async def process(stack: Any, tmp_path: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    names = ("CONTROLLER", "SCHEDULER", "GATEWAY", "TRAJECTORY", "VERIFIER", "CATALOG")
    prefix = "LONGSHORE_ROLLOUT_WORKER_"
    env = {
        **os.environ,
        **{f"{prefix}{name}_ADDRESS": stack.address for name in names},
        f"{prefix}DATA_DIR": str(tmp_path),
        f"{prefix}HEARTBEAT_S": "0.1",
        f"{prefix}WORKER_NAME": "pod-7",
        "LONGSHORE_SECRET": "test-secret",
    }
    started = await asyncio.create_subprocess_exec(sys.executable, "-m", "longshore_rollout_worker", env=env)
    yield started
    if started.returncode is None:
        started.kill()
        await started.wait()


async def test_sigterm_lets_the_running_attempt_end(stack: Any, wait_until: Any, process: Any) -> None:
    stack.gateway.delay_s = 1.0
    stack.add("g-0")
    await wait_until(lambda: stack.gateway.calls, 60)
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 30) == 0
    assert [seal.attempt_id for seal in stack.trajectory.sealed] == ["g-0"]
    assert stack.controller.completed[0].worker_id.startswith("pod-7-")
    assert stack.scheduler.deleted == ["sb-g-0-1"]


async def test_a_killed_workers_attempt_is_run_again_under_a_new_epoch(
    stack: Any, wait_until: Any, process: Any
) -> None:
    stack.gateway.delay_s = 30.0
    stack.add("g-0", epoch=1)
    await wait_until(lambda: stack.gateway.calls and stack.controller.heartbeats, 60)
    process.kill()
    await process.wait()
    beats = len(stack.controller.heartbeats)
    stack.gateway.delay_s = 0.0
    stack.add("g-0", epoch=2)
    await stack.start()
    await wait_until(lambda: stack.controller.completed)
    assert [(seal.attempt_id, seal.lease_epoch) for seal in stack.trajectory.sealed] == [("g-0", 2)]
    # The dead one's sandbox and session run out by their times to live; nobody renews them.
    assert "sb-g-0-1" not in stack.scheduler.deleted
    assert all(ref.epoch == 2 for beat in stack.controller.heartbeats[beats:] for ref in beat.leases)
