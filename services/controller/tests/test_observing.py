"""What the controller's Prometheus page says of a run, while it is there and afterwards."""

from __future__ import annotations

from prometheus_client import REGISTRY

from longshore_controller import metrics

from .builders import SPEC
from .conftest import Harbor


def value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"longshore_controller_{name}", labels)


async def test_an_ended_run_keeps_its_last_figures_and_is_then_forgotten(harbor: Harbor) -> None:
    async with harbor.controller() as living:
        run = (await living.submit(SPEC)).run_id
        await living.until(run)
        await living.parts.observer.observe()
        assert value("run_state", run=run, state="succeeded") == 1
        assert value("run_state", run=run, state="training") == 0
        assert (value("run_step", run=run), value("run_total_steps", run=run)) == (3, 3)
        assert (value("step_number", run=run), value("step_grad_norm", run=run)) == (3, 1.0)
        assert value("step_seconds", run=run, part="train") == 1.0
        assert value("attempts", run=run, state="queued") == 0
        metrics.forget(run)
        assert value("run_state", run=run, state="succeeded") is None
        assert value("step_grad_norm", run=run) is None
        assert value("leases_total", run=run, purpose="train") == 12


async def test_a_run_that_waits_for_workers_shows_its_queue(harbor: Harbor) -> None:
    async with harbor.controller(worker=False) as living:
        run = (await living.submit(SPEC)).run_id
        await living.until_queued(run, 1)
        await living.parts.observer.observe()
        assert (value("attempts", run=run, state="queued") or 0) > 0
        leases = await living.parts.application.leases.lease("a", 1, 0)
        await living.parts.observer.observe()
        assert value("attempts", run=run, state="leased") == len(leases) == 1
