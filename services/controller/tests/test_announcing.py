"""What the queue will want is announced when it changes, and taken back at the end; a deaf scheduler harms nothing."""

from __future__ import annotations

from longshore_common.errors import Unavailable
from longshore_controller.domain.vocabulary import RunState

from .builders import SPEC
from .conftest import Harbor


async def test_announces_the_queue_and_its_end(harbor: Harbor) -> None:
    async with harbor.controller(worker=False) as living:
        run = await living.submit(SPEC)
        await living.until(run.run_id, RunState.TRAINING)
        await living.until_queued(run.run_id, 2)
        await living.parts.announcer.announce()
        (said,) = harbor.demand.said
        assert said[0] == run.run_id
        assert sum(said[1].values()) == 2, "the first dev panel"
        await living.parts.announcer.announce()
        assert len(harbor.demand.said) == 1, "only changes"
        await living.parts.manager.stop(run.run_id, "")
        await living.parts.announcer.announce()
        assert harbor.demand.said[-1] == (run.run_id, {})


async def test_a_deaf_scheduler_does_not_stop_a_run(harbor: Harbor) -> None:
    harbor.demand.broken = Unavailable("no scheduler")
    async with harbor.controller(announce=True) as living:
        run = await living.submit(SPEC)
        assert (await living.until(run.run_id)).state is RunState.SUCCEEDED
