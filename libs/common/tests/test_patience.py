"""Short absences of other services are waited out, within a bound."""

import asyncio

import pytest

from longshore_common.clock import FakeClock
from longshore_common.errors import Conflict, DeadlineExceeded, LongshoreError, Unavailable
from longshore_common.patience import Patience


class Service:
    """Fails with each error in turn, then answers."""

    def __init__(self, *errors: LongshoreError) -> None:
        self._errors = list(errors)
        self.calls = 0

    async def call(self) -> str:
        self.calls += 1
        if self._errors:
            raise self._errors.pop(0)
        return "done"


async def _run(
    service: Service, seconds: float, clock: FakeClock, errors: type[LongshoreError] = LongshoreError
) -> str:
    call = asyncio.create_task(Patience(clock, seconds, errors)("call", service.call))
    while not call.done():
        await asyncio.sleep(0)
        clock.advance(0.25)
    return call.result()


async def test_a_service_that_comes_back_is_waited_for() -> None:
    service = Service(*[Unavailable("restarting")] * 5)
    clock = FakeClock()
    assert await _run(service, 60, clock) == "done"
    assert service.calls == 6
    assert 15 <= clock.monotonic() <= 17, "0.5 + 1 + 2 + 4 + 8 s of pauses"


async def test_one_that_stays_away_is_an_error_in_the_end() -> None:
    service = Service(*[Unavailable("gone")] * 100)
    clock = FakeClock()
    with pytest.raises(Unavailable, match="gone"):
        await _run(service, 60, clock)
    assert 60 <= clock.monotonic() < 75


@pytest.mark.parametrize("error", [Conflict("over"), Unavailable("the secret is wrong", retryable=False)])
async def test_what_does_not_pass_is_raised_at_once(error: LongshoreError) -> None:
    service = Service(error)
    with pytest.raises(type(error)):
        await _run(service, 60, FakeClock())
    assert service.calls == 1


async def test_only_the_errors_that_were_named_are_repeated() -> None:
    late = DeadlineExceeded("busy")
    assert await _run(Service(late), 60, FakeClock()) == "done"
    with pytest.raises(DeadlineExceeded):
        await _run(Service(late), 60, FakeClock(), Unavailable)
