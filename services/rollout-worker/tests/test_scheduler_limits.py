"""A run's lower sandbox limits reach the scheduler; without them the task's own hold."""

from longshore.sandbox.v1 import sandbox_pb2
from longshore_rollout_worker.clients.scheduler import _lowered


class _Lease:
    def __init__(self, limits: dict[str, float | int]) -> None:
        self.sandbox_limits = limits


def test_lowered_limits_are_passed_on():
    assert _lowered(_Lease({"memory_mb": 64, "cpus": 0.5})) == sandbox_pb2.Limits(memory_mb=64, cpus=0.5)


def test_no_limits_leave_the_tasks_own():
    assert _lowered(_Lease({})) is None
