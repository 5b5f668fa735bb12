"""The service as its callers see it: a real gRPC server, a real database, fakes for scheduler, agent and verifier."""

from __future__ import annotations

import asyncio
import contextlib
import io
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from catalog_builders import bundle

from longshore.agent.v1 import agent_pb2, agent_pb2_grpc
from longshore.catalog.v1 import catalog_pb2 as pb
from longshore.catalog.v1 import catalog_pb2_grpc
from longshore.common.v1 import outcome_pb2
from longshore.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from longshore.verifier.v1 import verifier_pb2, verifier_pb2_grpc
from longshore_common.app import App, GrpcEndpoint, running
from longshore_common.errors import (
    Conflict,
    InvalidSpec,
    LongshoreError,
    NotFound,
    PermissionDenied,
    QuotaExceeded,
    Unavailable,
)
from longshore_common.grpc_client import mapped_stream, open_channel
from longshore_task_catalog.bootstrap import build
from longshore_task_catalog.settings import Settings

SECRET = "service-secret"


class FakeScheduler(sandbox_pb2_grpc.SandboxServiceServicer):
    """Grants sandboxes that all have the same agent; remembers which are alive."""

    def __init__(self) -> None:
        self.agent_address = ""
        self.alive: set[str] = set()
        self.most_alive = 0
        self.claims: list[sandbox_pb2.ClaimSandboxRequest] = []
        self.fault: LongshoreError | None = None
        self.ended: sandbox_pb2.Sandbox | None = None
        self.delay_s = 0.0

    async def ClaimSandbox(self, request: Any, context: Any) -> sandbox_pb2.ClaimSandboxResponse:
        self.claims.append(request)
        await asyncio.sleep(self.delay_s)
        if self.fault:
            raise self.fault
        if self.ended:
            return sandbox_pb2.ClaimSandboxResponse(sandbox=self.ended)
        self.alive.add(request.idempotency_key)
        self.most_alive = max(self.most_alive, len(self.alive))
        sandbox = sandbox_pb2.Sandbox(
            sandbox_id=request.idempotency_key, state=sandbox_pb2.SANDBOX_STATE_READY, image_digest="sha256:image"
        )
        return sandbox_pb2.ClaimSandboxResponse(
            sandbox=sandbox, agent_address=self.agent_address, agent_token=f"token-{request.idempotency_key}"
        )

    async def DeleteSandbox(self, request: Any, context: Any) -> sandbox_pb2.DeleteSandboxResponse:
        self.alive.discard(request.sandbox_id)
        return sandbox_pb2.DeleteSandboxResponse()


class FakeAgent(agent_pb2_grpc.AgentServiceServicer):
    """Records uploads and commands; solve.sh "runs" by marking the sandbox as solved."""

    def __init__(self) -> None:
        self.solved: set[str] = set()
        self.uploads: list[tuple[agent_pb2.UploadHeader, bytes]] = []
        self.execs: list[agent_pb2.ExecRequest] = []
        self.exited = agent_pb2.Exited(exit_code=0)
        self.hang = False

    async def Upload(self, request_iterator: Any, context: Any) -> agent_pb2.UploadResponse:
        header, data = None, b""
        async for part in request_iterator:
            if part.WhichOneof("part") == "header":
                header = part.header
            else:
                data += part.data
        assert header is not None
        self.uploads.append((header, data))
        return agent_pb2.UploadResponse(bytes=len(data))

    async def Exec(self, request: Any, context: Any) -> AsyncIterator[agent_pb2.ExecResponse]:
        self.execs.append(request)
        if self.hang:
            await asyncio.sleep(60)
        token = str(dict(context.invocation_metadata())["authorization"])
        self.solved.add(token.removeprefix("Bearer token-"))
        yield agent_pb2.ExecResponse(exited=self.exited)


class FakeVerifier(verifier_pb2_grpc.VerifierServiceServicer):
    """Rewards solved sandboxes; tests replace `answer`."""

    def __init__(self, agent: FakeAgent) -> None:
        self.agent = agent
        self.requests: list[verifier_pb2.VerifyRequest] = []
        self.answer: Callable[[bool, verifier_pb2.VerifyRequest], verifier_pb2.VerifyResponse] = self._reward

    def _reward(self, solved: bool, request: verifier_pb2.VerifyRequest) -> verifier_pb2.VerifyResponse:
        return rewarded(1.0 if solved else 0.0)

    async def Verify(self, request: Any, context: Any) -> verifier_pb2.VerifyResponse:
        self.requests.append(request)
        await asyncio.sleep(0)
        return self.answer(request.sandbox_id in self.agent.solved, request)


def rewarded(reward: float) -> verifier_pb2.VerifyResponse:
    return verifier_pb2.VerifyResponse(reward=outcome_pb2.Reward(reward=reward))


def failed(failure: outcome_pb2.Failure.ValueType) -> verifier_pb2.VerifyResponse:
    return verifier_pb2.VerifyResponse(failed=outcome_pb2.Failed(failure=failure, evidence="seen"))


class World:
    """A running catalog with its fake neighbours."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.scheduler, self.agent = FakeScheduler(), FakeAgent()
        self.verifier = FakeVerifier(self.agent)
        self.stub: Any = None
        self.address = ""

    @contextlib.asynccontextmanager
    async def run(self, probing: bool = True) -> AsyncIterator[World]:
        async with contextlib.AsyncExitStack() as stack:
            addresses = [await self._serve(stack, *server) for server in self._servers()]
            self.scheduler.agent_address = addresses[1]
            settings = Settings(
                data_dir=self.root, secret=SECRET, claim_timeout_s=10,
                scheduler_address=addresses[0] if probing else "", verifier_address=addresses[2] if probing else "",
            )  # fmt: skip
            handle = await stack.enter_async_context(running(await build(settings)))
            self.address = handle.grpc_addresses[0]
            channel = open_channel(self.address, SECRET)
            stack.push_async_callback(channel.close)
            self.stub = catalog_pb2_grpc.CatalogServiceStub(channel)
            yield self

    def _servers(self) -> list[tuple[Any, Any, str | None]]:
        return [
            (sandbox_pb2_grpc.add_SandboxServiceServicer_to_server, self.scheduler, SECRET),
            (agent_pb2_grpc.add_AgentServiceServicer_to_server, self.agent, None),
            (verifier_pb2_grpc.add_VerifierServiceServicer_to_server, self.verifier, SECRET),
        ]

    async def _serve(self, stack: contextlib.AsyncExitStack, add: Any, servicer: Any, secret: str | None) -> str:
        endpoint = GrpcEndpoint("127.0.0.1:0", (), lambda server: add(servicer, server), secret)
        handle = await stack.enter_async_context(running(App(type(servicer).__name__, [endpoint])))
        return handle.grpc_addresses[0]

    async def add(self, number: int = 0, changes: dict[str, str | None] | None = None, **fields: Any) -> Any:
        """Imports a task whose instruction holds the number."""
        files = {"instruction.md": f"Task {number}\n", **(changes or {})}
        data = bundle(self.root / f"folders/{number}-{len(list(self.root.glob('folders/*')))}", files)
        return await self.stub.ImportTask(pb.ImportTaskRequest(name=f"folder-{number}", bundle_tar_zst=data, **fields))

    async def probe(self, *digests: str, **fields: Any) -> list[pb.ProbeTasksResponse]:
        call = self.stub.ProbeTasks(pb.ProbeTasksRequest(digests=digests, **fields))
        return [answer async for answer in mapped_stream(call)]


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World(tmp_path).run() as world:
        yield world


async def test_image_and_network_come_back_over_the_wire(world: World) -> None:
    toml = '[environment]\ndocker_image = "a/b:1"\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.example"]\n'
    imported = await world.add(changes={"task.toml": toml})
    task = (await world.stub.GetTask(pb.GetTaskRequest(task=imported.task.digest))).task
    assert (task.docker_image, task.network_mode, list(task.allowed_hosts)) == ("a/b:1", "allowlist", ["a.example"])


async def test_import_is_idempotent_and_gives_the_bundle_back(world: World) -> None:
    first = await world.add(source="here")
    assert first.created
    assert first.task.state == pb.TASK_STATE_NEEDS_PROBE
    assert first.task.metadata_json == '{"skill": "count"}'
    again = await world.add()
    assert not again.created
    assert again.task == first.task
    found = await world.stub.GetTask(pb.GetTaskRequest(task="acme/count"))
    assert found.task == first.task
    data = (await world.stub.GetBundle(pb.GetBundleRequest(digest=first.task.digest))).bundle_tar_zst
    assert data == bundle(world.root / "copy", {"instruction.md": "Task 0\n"})


async def test_the_folder_name_is_used_where_task_toml_has_none(world: World) -> None:
    assert (await world.add(3, {"task.toml": ""})).task.name == "folder-3"


async def test_changed_content_is_another_task_without_evidence(world: World) -> None:
    first = (await world.add(1)).task
    await world.probe(first.digest)
    second = (await world.add(2)).task
    assert second.digest != first.digest
    assert second.state == pb.TASK_STATE_NEEDS_PROBE
    with pytest.raises(Conflict, match="2 tasks are named acme/count"):
        await world.stub.GetTask(pb.GetTaskRequest(task="acme/count"))


def stored(world: World) -> list[str]:
    return [path.name for path in (world.root / "objects").rglob("*") if path.is_file()]


async def test_an_import_with_errors_stores_nothing(world: World) -> None:
    with pytest.raises(
        InvalidSpec, match=r"tests/test\.sh: nothing can be graded.*task\.toml:1: not TOML|tests-missing"
    ) as caught:
        await world.add(0, {"tests/test.sh": None, "task.toml": "[task\n"})
    assert "toml-broken" in caught.value.message
    assert caught.value.field == "tests/test.sh"
    assert stored(world) == []
    assert len((await world.stub.ListTasks(pb.ListTasksRequest())).tasks) == 0


async def test_a_dry_run_stores_nothing_and_answers_with_findings(world: World) -> None:
    answer = await world.add(0, {"tests/test.sh": None}, dry_run=True)
    assert [finding.rule for finding in answer.findings] == ["tests-missing"]
    assert answer.findings[0].severity == pb.SEVERITY_ERROR
    assert not answer.HasField("task")
    good = await world.add(1, dry_run=True)
    assert good.task.digest
    assert not good.created
    assert stored(world) == []


async def test_a_lost_bundle_is_healed_by_the_next_import(world: World) -> None:
    task = (await world.add()).task
    for path in (world.root / "objects").rglob("*.zst"):
        path.unlink()
    assert not (await world.add()).created
    assert (await world.stub.GetBundle(pb.GetBundleRequest(digest=task.digest))).bundle_tar_zst


async def test_unknown_things_are_not_found(world: World) -> None:
    splits = [pb.Split(name="train", task_digests=["x"])]
    for call in (
        world.stub.GetTask(pb.GetTaskRequest(task="nope")),
        world.stub.GetBundle(pb.GetBundleRequest(digest="sha256:nope")),
        world.stub.GetDataset(pb.GetDatasetRequest(name="nope")),
        world.stub.FreezeDataset(pb.FreezeDatasetRequest(name="d", splits=splits)),
    ):
        with pytest.raises(NotFound):
            await call
    with pytest.raises(NotFound):
        await world.probe("sha256:nope")


async def test_callers_without_the_secret_are_refused(world: World) -> None:
    channel = open_channel(world.address, "wrong")
    with pytest.raises(PermissionDenied):
        await catalog_pb2_grpc.CatalogServiceStub(channel).ListTasks(pb.ListTasksRequest())
    await channel.close()


async def test_datasets_are_frozen_listed_and_paged(world: World) -> None:
    digests = [(await world.add(number)).task.digest for number in range(5)]
    splits = [pb.Split(name="train", task_digests=digests[:3]), pb.Split(name="test", task_digests=digests[3:])]
    frozen = await world.stub.FreezeDataset(pb.FreezeDatasetRequest(name="demo", splits=splits))
    assert frozen.created
    again = await world.stub.FreezeDataset(pb.FreezeDatasetRequest(name="demo", splits=splits[::-1]))
    assert (again.created, again.dataset) == (False, frozen.dataset)
    with pytest.raises(Conflict, match="split test: 2 gone"):
        await world.stub.FreezeDataset(pb.FreezeDatasetRequest(name="demo", splits=splits[:1]))
    assert list((await world.stub.ListDatasets(pb.ListDatasetsRequest())).datasets) == [frozen.dataset]
    reference = f"demo@{frozen.dataset.digest}"
    page = await world.stub.ListTasks(pb.ListTasksRequest(dataset=reference, split="train", page_size=2))
    rest = await world.stub.ListTasks(
        pb.ListTasksRequest(dataset="demo", split="train", page_size=2, page_token=page.next_page_token)
    )
    assert sorted(task.digest for task in [*page.tasks, *rest.tasks]) == sorted(digests[:3])
    assert rest.next_page_token == ""
    with pytest.raises(Conflict, match="not sha256:other"):
        await world.stub.GetDataset(pb.GetDatasetRequest(name="demo@sha256:other"))
    with pytest.raises(NotFound, match="no split dev; it has test, train"):
        await world.stub.ListTasks(pb.ListTasksRequest(dataset="demo", split="dev"))
    with pytest.raises(InvalidSpec, match="page_token"):
        await world.stub.ListTasks(pb.ListTasksRequest(page_token="%%%"))


async def test_probe_runs_oracle_and_nop_and_deletes_its_sandboxes(world: World) -> None:
    toml = '[task]\nname = "acme/env"\n[agent]\ntimeout_sec = 9\n[solution.env]\nGREETING = "hi"\n'
    digest = (await world.add(0, {"task.toml": toml})).task.digest
    [answer] = await world.probe(digest, repeats=3)
    assert answer.state == pb.TASK_STATE_EVALUABLE
    assert [(one.kind, list(one.rewards)) for one in answer.evidence] == [("oracle", [1.0, 1.0, 1.0]), ("nop", [0.0])]
    assert {one.image_digest for one in answer.evidence} == {"sha256:image"}
    assert world.scheduler.alive == set()
    assert len(world.scheduler.claims) == 4
    assert len({claim.idempotency_key for claim in world.scheduler.claims}) == 4
    header, data = world.agent.uploads[0]
    assert (header.path, header.tar, header.replace) == ("/solution", True, True)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert tar.getnames() == ["solve.sh"]
    command = world.agent.execs[0]
    assert command.command[-1] == "/solution/solve.sh"
    assert (command.user, command.timeout_s, dict(command.env)) == ("", 9, {"GREETING": "hi"})
    assert not any(request.regrade for request in world.verifier.requests)


async def test_evidence_is_kept_unless_forced_or_too_little(world: World) -> None:
    digest = (await world.add()).task.digest
    assert not (await world.probe(digest))[0].cached
    assert (await world.probe(digest))[0].cached
    assert len(world.scheduler.claims) == 2
    assert not (await world.probe(digest, repeats=2))[0].cached
    assert not (await world.probe(digest, force=True))[0].cached
    task = (await world.stub.GetTask(pb.GetTaskRequest(task=digest))).task
    assert len(task.evidence) == 6


@pytest.mark.parametrize(
    ("answer", "state", "reason"),
    [
        (lambda solved, _: rewarded(0.0), pb.TASK_STATE_REJECTED, "oracle never passed: reward 0"),
        (lambda solved, _: rewarded(1.0), pb.TASK_STATE_REJECTED, "doing nothing is rewarded"),
        (
            lambda solved, r: rewarded(float(r.attempt_id[-1] != "1")),
            pb.TASK_STATE_FLAKY,
            "oracle was rewarded 1.0 in 1 of 2 runs",
        ),
        (lambda solved, _: failed(outcome_pb2.FAILURE_REWARD_MISSING), pb.TASK_STATE_REJECTED, "reward_missing"),
        (lambda solved, _: failed(outcome_pb2.FAILURE_VERIFIER_SETUP), pb.TASK_STATE_NEEDS_PROBE, "verifier_setup"),
        (lambda solved, _: failed(outcome_pb2.FAILURE_SANDBOX_OOM), pb.TASK_STATE_NEEDS_PROBE, "sandbox_oom"),
    ],
    ids=["oracle fails", "nop passes", "flaky", "no reward", "verifier broken", "out of memory"],
)
async def test_probe_verdicts(world: World, answer: Any, state: int, reason: str) -> None:
    world.verifier.answer = answer
    digest = (await world.add()).task.digest
    [result] = await world.probe(digest, repeats=2)
    assert result.state == state
    assert reason in result.state_reason
    assert world.scheduler.alive == set()


@pytest.mark.parametrize(
    ("fault", "failure"),
    [(Unavailable("no room", retryable=False), "sandbox_start"), (QuotaExceeded("full", which="sandboxes"), "quota")],
)
async def test_infrastructure_failures_are_recorded_and_never_reject(
    world: World, fault: LongshoreError, failure: str
) -> None:
    digest = (await world.add()).task.digest
    world.scheduler.fault = fault
    [result] = await world.probe(digest, repeats=3)
    assert result.state == pb.TASK_STATE_NEEDS_PROBE
    assert failure in result.state_reason
    assert fault.message in result.state_reason
    assert [list(one.failures) for one in result.evidence] == [[failure]]
    world.scheduler.fault = None
    assert (await world.probe(digest))[0].state == pb.TASK_STATE_EVALUABLE


async def test_a_sandbox_that_never_became_ready_is_a_start_failure(world: World) -> None:
    digest = (await world.add()).task.digest
    world.scheduler.ended = sandbox_pb2.Sandbox(
        sandbox_id="s",
        state=sandbox_pb2.SANDBOX_STATE_ENDED,
        end_reason=sandbox_pb2.END_REASON_IMAGE_PULL,
        end_detail="no base",
    )
    [result] = await world.probe(digest)
    assert [list(one.failures) for one in result.evidence] == [["image_pull"]]
    assert "no base" in result.state_reason


async def test_a_solution_that_fails_says_why(world: World) -> None:
    world.verifier.answer = lambda solved, _: rewarded(0.0)
    world.agent.exited = agent_pb2.Exited(exit_code=7)
    digest = (await world.add()).task.digest
    [result] = await world.probe(digest)
    assert "solve.sh ended with status 7" in result.evidence[0].detail


async def test_a_task_without_solution_is_reported_and_not_run(world: World) -> None:
    digest = (await world.add(0, {"solution/solve.sh": None})).task.digest
    [result] = await world.probe(digest)
    assert result.state == pb.TASK_STATE_NEEDS_PROBE
    assert "no solution/solve.sh" in result.state_reason
    assert world.scheduler.claims == []


async def test_concurrency_is_bounded_and_results_stream(world: World) -> None:
    digests = [(await world.add(number)).task.digest for number in range(9)]
    world.scheduler.delay_s = 0.02
    call = world.stub.ProbeTasks(pb.ProbeTasksRequest(digests=[*digests, digests[0]], concurrency=3))
    claims_at = [len(world.scheduler.claims) async for _ in mapped_stream(call)]
    assert len(claims_at) == 9
    assert claims_at[0] < 18
    assert world.scheduler.most_alive == 3
    with pytest.raises(InvalidSpec, match="concurrency"):
        await world.probe(digests[0], concurrency=10_000)
    with pytest.raises(InvalidSpec, match="repeats"):
        await world.probe(digests[0], repeats=-1)


@pytest.mark.parametrize("place", ["exec", "claim"])
async def test_a_cancelled_probe_leaves_no_sandbox(world: World, place: str) -> None:
    digests = [(await world.add(number)).task.digest for number in range(4)]
    world.agent.hang = place == "exec"
    world.scheduler.delay_s = 0.5 if place == "claim" else 0.0
    call = world.stub.ProbeTasks(pb.ProbeTasksRequest(digests=digests, concurrency=2))
    reading = asyncio.ensure_future(call.read())
    while len(world.scheduler.claims) < 2 or (place == "exec" and len(world.agent.execs) < 2):
        await asyncio.sleep(0.01)
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reading
    await asyncio.sleep(0.8 if place == "claim" else 0.2)
    assert world.scheduler.alive == set()
    assert len(world.scheduler.claims) == 2


async def test_reference_groups_make_a_task_trainable(world: World) -> None:
    digest = (await world.add()).task.digest
    await world.probe(digest)
    request = pb.RecordReferenceRequest(digest=digest, rewards=[0.0, 1.0], token_exact=True, reference="run/r/group/g")
    assert (await world.stub.RecordReference(request)).state == pb.TASK_STATE_TRAINABLE
    with pytest.raises(InvalidSpec, match="finite"):
        await world.stub.RecordReference(pb.RecordReferenceRequest(digest=digest, rewards=[float("nan")]))


async def test_everything_survives_a_restart(tmp_path: Path) -> None:
    async with World(tmp_path).run() as world:
        task = (await world.add()).task
        await world.probe(task.digest)
    async with World(tmp_path).run() as world:
        found = (await world.stub.GetTask(pb.GetTaskRequest(task=task.digest))).task
        assert found.state == pb.TASK_STATE_EVALUABLE
        assert (await world.probe(task.digest))[0].cached


async def test_without_addresses_only_probes_are_refused(tmp_path: Path) -> None:
    async with World(tmp_path).run(probing=False) as world:
        digest = (await world.add()).task.digest
        with pytest.raises(Unavailable, match="SCHEDULER_ADDRESS"):
            await world.probe(digest)
