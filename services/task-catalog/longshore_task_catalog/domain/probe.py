"""The probe: oracle and nop of each task, a bounded number of sandboxes at a time, results as they come."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from longshore_common.bundle import pack_tar, unpack
from longshore_common.clock import Clock
from longshore_common.errors import NotFound
from longshore_task_catalog.domain.model import Evidence, EvidenceKind, ProbeResult, Task
from longshore_task_catalog.domain.ports import BundleStore, ProbeRun, ProbeRunner, TaskStore
from longshore_task_catalog.domain.states import NO_SOLUTION, is_infrastructure, is_settled

MAX_REPEATS = 100


def solution_tar(bundle: bytes) -> bytes:
    """The solution folder of a bundle as an uncompressed tar. Blocking: call it in a thread."""
    with tempfile.TemporaryDirectory(prefix="longshore-solution-") as folder:
        unpack(bundle, Path(folder))
        return pack_tar(Path(folder) / "solution")


class Prober:
    """Probes tasks and records what came out."""

    def __init__(self, tasks: TaskStore, bundles: BundleStore, runner: ProbeRunner, clock: Clock) -> None:
        self._tasks, self._bundles, self._runner, self._clock = tasks, bundles, runner, clock

    async def probe(
        self, digests: Sequence[str], repeats: int, concurrency: int, force: bool, probe_id: str
    ) -> AsyncIterator[ProbeResult]:
        """One result per task as it ends. When the caller leaves, what runs is cancelled and its sandboxes deleted.

        Raises:
            NotFound: a digest is unknown; nothing was run.
        """
        tasks = [await self._task(digest) for digest in dict.fromkeys(digests)]
        gate = asyncio.Semaphore(concurrency)

        async def one(task: Task) -> ProbeResult:
            async with gate:
                return await self._probe_task(task, repeats, force, probe_id)

        running = [asyncio.create_task(one(task)) for task in tasks]
        try:
            for ended in asyncio.as_completed(running):
                yield await ended
        finally:
            for each in running:
                each.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*running, return_exceptions=True)

    async def _task(self, digest: str) -> Task:
        task = await self._tasks.get_task(digest)
        if task is None:
            raise NotFound(f"no task {digest}; import it first", details={"digest": digest})
        return task

    async def _probe_task(self, task: Task, repeats: int, force: bool, probe_id: str) -> ProbeResult:
        if not force and is_settled(task.evidence, task.state, repeats):
            return _result(task, cached=True)
        if not task.content.has_solution:
            return ProbeResult(task.digest, task.state, NO_SOLUTION, task.evidence)
        solution = await asyncio.to_thread(solution_tar, await self._bundles.get(task.digest))
        oracle: list[ProbeRun] = []
        for run in range(repeats):
            oracle.append(await self._runner.oracle(task, solution, probe_id, run))
            if _broke(oracle[-1]):
                break
        evidence = [self._evidence(EvidenceKind.ORACLE, oracle)]
        # A sandbox that could not start for the oracle would not for nop: one failure per task is enough.
        if not _broke(oracle[-1]):
            evidence.append(self._evidence(EvidenceKind.NOP, [await self._runner.nop(task, probe_id)]))
        return _result(await self._tasks.add_evidence(task.digest, evidence))

    def _evidence(self, kind: EvidenceKind, runs: Sequence[ProbeRun]) -> Evidence:
        return Evidence(
            kind=kind,
            rewards=tuple(run.reward for run in runs if run.reward is not None),
            failures=tuple(run.failure for run in runs if run.reward is None),
            image_digest=next((run.image_digest for run in runs if run.image_digest), ""),
            recorded_at_ms=self._clock.now_ms(),
            detail=next((run.detail for run in runs if run.detail), ""),
        )


def _broke(run: ProbeRun) -> bool:
    return run.reward is None and is_infrastructure(run.failure)


def _result(task: Task, cached: bool = False) -> ProbeResult:
    return ProbeResult(task.digest, task.state, task.state_reason, task.evidence, cached)
