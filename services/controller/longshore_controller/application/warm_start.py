"""The phases before training: the supervised start, and an engine that serves its result as version 0."""

from __future__ import annotations

from pathlib import Path

from longshore_controller.application.context import RunContext
from longshore_controller.application.trainer_jobs import TrainerJobs
from longshore_controller.domain.jobs import Addresses, JobFile, JobKind, warm_start_job
from longshore_controller.domain.ports import Artifacts, Gateway, Job
from longshore_controller.domain.stores import NewEvent, RunStore
from longshore_controller.domain.vocabulary import EventKind


def base_dir(context: RunContext, artifacts: Artifacts) -> Path:
    """Folder of version 0: the warm start's result, or the model as given."""
    if context.plan.spec.warm_start is None:
        return Path(context.plan.paths.model)
    return artifacts.out_dir(context.run_id) / "v0"


class WarmStart:
    """Idempotent: done when version 0 is there, whole."""

    def __init__(self, runs: RunStore, artifacts: Artifacts, jobs: TrainerJobs, addresses: Addresses) -> None:
        self._runs = runs
        self._artifacts = artifacts
        self._jobs = jobs
        self._addresses = addresses

    async def run(self, context: RunContext) -> None:
        """Returns when version 0 exists and its digest is recorded."""
        run_id = context.run_id
        if context.plan.spec.warm_start is not None:
            out_dir = self._artifacts.out_dir(run_id)

            def make(incarnation: int) -> JobFile:
                return warm_start_job(context.plan, run_id, incarnation, context.alias, out_dir, self._addresses)

            await self._jobs.run(run_id, JobKind.SFT, make, _until_exit, lambda: self._progress(run_id))
        digest = await self._artifacts.tree_digest(base_dir(context, self._artifacts))
        await self._runs.set_base_digest(run_id, digest)

    async def _progress(self, run_id: str) -> tuple[bool, int]:
        reported = [record.step for record in await self._runs.steps(run_id) if record.phase == "warm_start"]
        return await self._artifacts.base_complete(run_id), max(reported, default=0)


async def _until_exit(job: Job) -> int:
    return await job.wait()


class Serving:
    """Idempotent: publishing the same version and digest again is a no-op."""

    def __init__(self, runs: RunStore, artifacts: Artifacts, gateway: Gateway) -> None:
        self._runs = runs
        self._artifacts = artifacts
        self._gateway = gateway

    async def run(self, context: RunContext) -> None:
        """Returns when an engine serves version 0."""
        run = await self._runs.get(context.run_id)
        folder = base_dir(context, self._artifacts)
        await self._gateway.publish_base(context.run_id, context.alias, run.incarnation, str(folder), run.base_digest)
        message = f"version 0 is served as {context.alias}-v0"
        await self._runs.append(context.run_id, NewEvent(EventKind.PUBLISH, message, {"version": 0}))
