"""In-memory stand-ins for the other services; trainer and worker speak to the real trajectory store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from longshore.common.v1 import outcome_pb2 as common
from longshore.controller.v1 import controller_pb2 as controller
from longshore.trajectory.v1 import trajectory_pb2 as pb
from longshore.trajectory.v1 import trajectory_pb2_grpc as rpc
from longshore_common.digests import digest
from longshore_common.errors import LongshoreError, NotFound, Unavailable
from longshore_controller.api.convert import lease_to_proto
from longshore_controller.application.leasing import Failure, LeaseService
from longshore_controller.domain.jobs import JobFile, JobKind
from longshore_controller.domain.leases import LeaseRef
from longshore_controller.domain.plan import CatalogDataset, CatalogTask, ModelIdentity
from longshore_controller.domain.ports import Job
from longshore_controller.domain.records import PolicyInfo, StepRecord
from longshore_controller.domain.spec import SandboxSpec
from longshore_controller.domain.vocabulary import RunState, StepPhase, TaskState

Stub = rpc.TrajectoryServiceStub


class Gate:
    """Holds whoever comes to a phase until the test lets go."""

    def __init__(self) -> None:
        self.phase: RunState | None = None

    async def passing(self, phase: RunState) -> None:
        while self.phase is phase:
            await asyncio.sleep(0.01)


@dataclass
class FakeCatalog:
    """train 4, dev 2, test 8 tasks, all evaluable unless changed."""

    states: dict[str, TaskState] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=lambda: {"train": 4, "dev": 2, "test": 8})
    overlap: bool = False

    def _splits(self) -> dict[str, tuple[str, ...]]:
        splits = {s: tuple(digest(f"{s}-{i}") for i in range(n)) for s, n in self.sizes.items()}
        if self.overlap:
            splits["test"] = (*splits["test"], splits["train"][0])
        return splits

    async def dataset(self, name: str) -> CatalogDataset:
        if name != "demo":
            raise NotFound(f"no dataset '{name}' is frozen in the catalog; there are: demo")
        return CatalogDataset(name=name, digest=digest(self._splits()), splits=self._splits())

    async def tasks(self, dataset: str) -> list[CatalogTask]:
        return [
            CatalogTask(
                digest=digest(f"{split}-{i}"),
                name=f"{split}-{i}",
                instruction=f"do {split} {i}",
                state=self.states.get(f"{split}-{i}", TaskState.EVALUABLE),
                state_reason="",
                skill=f"skill-{i % 3}",
                agent_timeout_s=60.0,
            )
            for split, n in self.sizes.items()
            for i in range(n)
        ]


class FakeGateway:
    """Remembers versions; `broken` makes publishing fail."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.versions: dict[str, dict[int, PolicyInfo]] = {}
        self.incarnations: list[int] = []
        self.retired: list[str] = []
        self.broken: LongshoreError | None = None
        self.absences: dict[str, int] = {}
        """How many calls of a method find nobody, by its name."""
        self.republished: list[int] = []

    def serve(self, alias: str, version: int, uri: str, state: str = "serving") -> None:
        known = self.versions.setdefault(alias, {})
        for key, policy in known.items():
            if 0 < key < version:
                known[key] = replace(policy, state="unloaded", current=False)
        kind = "full" if version == 0 else "lora"
        known[version] = PolicyInfo(version, kind, state, uri, "sha256:w", f"{alias}-v{version}", 1, True)

    def _present(self, method: str) -> None:
        if self.absences.get(method, 0) > 0:
            self.absences[method] -= 1
            raise Unavailable("the gateway restarts")

    async def publish_base(self, run_id: str, alias: str, incarnation: int, uri: str, digest: str) -> None:
        self._present("publish_base")
        if self.broken is not None:
            raise self.broken
        await self.gate.passing(RunState.SERVING)
        assert incarnation >= max(self.incarnations, default=1)
        assert digest.startswith("sha256:")
        self.incarnations.append(incarnation)
        if 0 not in self.versions.get(alias, {}):
            self.serve(alias, 0, uri)

    async def republish(self, run_id: str, alias: str, policy: PolicyInfo, incarnation: int) -> None:
        self.republished.append(policy.version)
        self.serve(alias, policy.version, policy.uri)

    async def policy(self, alias: str, version: int) -> PolicyInfo | None:
        self._present("policy")
        return self.versions.get(alias, {}).get(version)

    async def policies(self, alias: str) -> list[PolicyInfo]:
        self._present("policies")
        return list(self.versions.get(alias, {}).values())

    async def retire(self, alias: str) -> None:
        self._present("retire")
        self.retired.append(alias)


class FakeArtifacts:
    """A folder; digests are made up."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def resolve(self, path: str) -> Path:
        return self.root / path

    def out_dir(self, run_id: str) -> Path:
        return self.root / "checkpoints" / run_id

    async def model_identity(self, folder: Path) -> ModelIdentity:
        return ModelIdentity(base_digest="sha256:b", tokenizer_digest="sha256:t", template_digest="sha256:c")

    async def file_digest(self, path: Path) -> str:
        return "sha256:d"

    async def base_complete(self, run_id: str) -> bool:
        return (self.out_dir(run_id) / "v0" / "config.json").is_file()

    async def tree_digest(self, folder: Path) -> str:
        return "sha256:v0"


class FakeJob:
    """A trainer as a task in this process."""

    def __init__(self, task: asyncio.Task[int]) -> None:
        self._task = task

    async def wait(self) -> int:
        return await asyncio.shield(self._task)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def log_tail(self) -> str:
        return "last line of the trainer's log"


class TrainerDied(Exception):
    """Injected."""


class FakeLauncher:
    """Does what the trainer does, in the contracts' commit order; `die(point, incarnation, step)` injects deaths."""

    def __init__(self, stub: Stub, gateway: FakeGateway) -> None:
        self.stub = stub
        self.gateway = gateway
        self.report: Callable[[StepRecord], object] | None = None
        self.die: Callable[[str, int, int], bool] = lambda point, incarnation, step: False
        self.launched: list[JobFile] = []
        self.consumed: list[str] = []
        self.trained: list[tuple[int, list[str]]] = []

    @property
    def platform(self) -> str:
        return "cpu"

    async def launch(self, job: JobFile) -> Job:
        self.launched.append(job)
        return FakeJob(asyncio.create_task(self._run(job)))

    async def _run(self, job: JobFile) -> int:
        try:
            await (self._sft(job) if job.kind is JobKind.SFT else self._rl(job))
        except TrainerDied:
            return 1
        return 0

    def _maybe_die(self, point: str, job: JobFile, step: int = 0) -> None:
        if self.die(point, job.incarnation, step):
            raise TrainerDied(point)

    async def _sft(self, job: JobFile) -> None:
        self._maybe_die("sft", job)
        await self.gateway.gate.passing(RunState.WARMING)
        await self._tell(job, StepPhase.WARM_START, 10, {"loss": 2.5})
        folder = Path(job.out_dir) / "v0"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text("{}")

    async def _rl(self, job: JobFile) -> None:
        assert Path(job.model_dir).name == "v0"
        manifest = Path(job.out_dir) / "manifest.json"
        state = json.loads(manifest.read_text()) if manifest.exists() else {"step": 0, "consumed": []}
        await self.stub.ResumeRun(
            pb.ResumeRunRequest(
                run_id=job.run_id,
                incarnation=job.incarnation,
                step=state["step"],
                consumed_group_ids=state["consumed"],
            )
        )
        if state["step"]:
            self.gateway.serve(job.alias, state["step"], "file")
        for step in range(state["step"] + 1, job.steps + 1):
            if not await self._step(job, step, state, manifest):
                return

    async def _step(self, job: JobFile, step: int, state: dict, manifest: Path) -> bool:  # type: ignore[type-arg]
        if step == 2:
            await self.gateway.gate.passing(RunState.TRAINING)
        self._maybe_die("before batch", job, step)
        batch = await self._take(job, step)
        if batch is None:
            return False
        ids = [group.group_id for group in batch.groups]
        self._maybe_die("before manifest", job, step)
        state.update(step=step, consumed=[*state["consumed"], *ids])
        manifest.write_text(json.dumps(state))
        self.trained.append((step, ids))
        self._maybe_die("before publish", job, step)
        self.gateway.serve(job.alias, step, "file")
        self._maybe_die("before commit", job, step)
        await self.stub.CommitBatch(
            pb.CommitBatchRequest(run_id=job.run_id, incarnation=job.incarnation, step=step, batch_id=batch.batch_id)
        )
        self._maybe_die("before report", job, step)
        metrics = {"loss": 0.1 * step, "reward_mean": 0.5, "solve_rate": 0.5, "tokens": 40.0, "grad_norm": 1.0}
        await self._tell(job, StepPhase.TRAIN, step, metrics)
        return True

    async def _take(self, job: JobFile, step: int) -> pb.Batch | None:
        while True:
            answer = await self.stub.TakeBatch(
                pb.TakeBatchRequest(
                    run_id=job.run_id,
                    incarnation=job.incarnation,
                    step=step,
                    max_staleness=job.max_staleness,
                    groups=job.groups_per_step,
                    wait_s=5,
                )
            )
            if answer.closed:
                return None
            if answer.HasField("batch"):
                return answer.batch

    async def _tell(self, job: JobFile, phase: StepPhase, step: int, metrics: dict[str, float]) -> None:
        assert self.report is not None
        seconds = {"train": 1.0, "publish": 0.1, "checkpoint": 0.2, "wait_for_batch": 0.3}
        record = StepRecord(job.run_id, phase, step, job.incarnation, metrics, seconds, job.steps, 1000 + step)
        await self.report(record)  # type: ignore[misc]


class FakeDemand:
    """Keeps what was announced, in order."""

    def __init__(self) -> None:
        self.said: list[tuple[str, dict[str, int]]] = []
        self.broken: LongshoreError | None = None

    async def announce(self, run_id: str, tasks: Mapping[str, int], sandbox: SandboxSpec | None) -> None:
        if self.broken is not None:
            raise self.broken
        self.said.append((run_id, dict(tasks)))


class FakeWorker:
    """Leases, captures one turn, seals. `reward(lease)` decides; None means a failure for lack of infrastructure."""

    def __init__(self, leases: LeaseService, stub: Stub, gateway: FakeGateway, name: str = "worker-1") -> None:
        self.leases = leases
        self.stub = stub
        self.gateway = gateway
        self.name = name
        self.reward: Callable[[controller.Lease, int], float | None] = lambda lease, version: 1.0
        self.seen: list[controller.Lease] = []

    async def serve(self) -> None:
        while True:
            granted = [lease_to_proto(lease) for lease in await self.leases.lease(self.name, 16, 1.0)]
            await asyncio.gather(*(self.attempt(lease) for lease in granted))

    async def attempt(self, lease: controller.Lease) -> None:
        self.seen.append(lease)
        if "-test-" in lease.group_id:
            await self.gateway.gate.passing(RunState.EVALUATING)
        version = (
            lease.pinned_version if lease.HasField("pinned_version") else max(self.gateway.versions[lease.policy_alias])
        )
        reward = self.reward(lease, version)
        ref = LeaseRef(lease.attempt_id, lease.epoch)
        if reward is None:
            await self.leases.complete(self.name, ref, Failure("sandbox_start", "no sandbox today"))
            return
        await self.stub.AppendTurn(pb.AppendTurnRequest(turn=_turn(lease, version)))
        await self.stub.Seal(_seal(lease, version, reward))
        await self.leases.complete(self.name, ref, None)


def _turn(lease: controller.Lease, version: int) -> pb.Turn:
    return pb.Turn(
        attempt_id=lease.attempt_id,
        lease_epoch=lease.epoch,
        turn=0,
        parent_turn=-1,
        prompt_ids=[1, 2, 3],
        completion_ids=[4, 5],
        logprobs=[-0.5, -0.25],
        versions=[pb.VersionSpan(first_token=0, version=version)],
        finish_reason="stop",
        sampling=lease.sampling,
        template_digest="sha256:c",
        tokenizer_digest="sha256:t",
        base_digest="sha256:v0",
        status=pb.TURN_STATUS_OK,
        trainable=True,
    )


def _seal(lease: controller.Lease, version: int, reward: float) -> pb.SealRequest:
    sampling = common.Sampling()
    sampling.CopyFrom(lease.sampling)
    sampling.ClearField("seed")
    return pb.SealRequest(
        attempt_id=lease.attempt_id,
        lease_epoch=lease.epoch,
        outcome=common.Outcome(scored=common.Scored(reward=reward, termination=common.TERMINATION_AGENT_DONE)),
        reward=common.Reward(reward=reward, keys={"reward": reward}, file_name="reward.txt"),
        identity=pb.AttemptIdentity(
            task_digest=lease.task_digest,
            harness_name=lease.harness_name,
            harness_version=lease.harness_version,
            harness_config_digest=digest(json.loads(lease.harness_config_json)),
            base_digest="sha256:v0",
            tokenizer_digest="sha256:t",
            template_digest="sha256:c",
            sampling=sampling,
            policy_alias=lease.policy_alias,
            image_digest="sha256:image",
            limits_digest="sha256:limits",
            verifier_digest=lease.verifier_digest,
        ),
        start_version=version,
        agent_s=0.5,
        verifier_s=0.25,
        sandbox_id=f"sandbox-{lease.attempt_id}-{lease.epoch}",
    )
