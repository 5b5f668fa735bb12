from __future__ import annotations

from longshore_common.clock import FakeClock
from longshore_controller.application.quiet import QuietTimer


def test_intervals_grow_and_start_again_after_a_movement() -> None:
    clock = FakeClock()
    timer = QuietTimer(clock)
    due: list[int] = []
    for second in range(1, 17):
        clock.advance(1.0)
        if timer.due():
            due.append(second)
    assert due == [1, 3, 7, 15]
    timer.moved()
    clock.advance(1.0)
    assert timer.due()
