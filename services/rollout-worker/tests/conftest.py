"""In-memory fakes of the services around the worker, on real sockets, and the real worker wired to them."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from longshore.agent.v1 import agent_pb2, agent_pb2_grpc
from longshore.catalog.v1 import catalog_pb2, catalog_pb2_grpc
from longshore.common.v1 import outcome_pb2
from longshore.controller.v1 import controller_pb2, controller_pb2_grpc
from longshore.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from longshore.rollout.v1 import rollout_pb2_grpc
from longshore.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from longshore.trajectory.v1 import trajectory_pb2, trajectory_pb2_grpc
from longshore.verifier.v1 import verifier_pb2, verifier_pb2_grpc
from longshore_common.app import App, GrpcEndpoint, HttpEndpoint, running
from longshore_common.errors import LongshoreError, NotFound
from longshore_common.grpc_client import open_channel
from longshore_rollout_worker.bootstrap import build
from longshore_rollout_worker.settings import Settings

SECRET = "test-secret"


async def until(condition: Callable[[], Any], timeout_s: float = 8.0) -> None:
    """Waits for a condition of the fakes."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


class FakeController(controller_pb2_grpc.ControllerServiceServicer):
    def __init__(self) -> None:
        self.queue: list[controller_pb2.Lease] = []
        self.completed: list[controller_pb2.CompleteRequest] = []
        self.heartbeats: list[controller_pb2.HeartbeatRequest] = []
        self.lost: list[tuple[str, int]] = []
        self.cancelled: list[tuple[str, int]] = []
        self.error: LongshoreError | None = None
        self.heartbeat_error: LongshoreError | None = None

    async def LeaseAttempts(self, request: Any, context: Any) -> controller_pb2.LeaseAttemptsResponse:
        if self.error:
            raise self.error
        end = asyncio.get_running_loop().time() + request.wait_s
        while not self.queue and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.01)
        granted, self.queue = self.queue[: request.max], self.queue[request.max :]
        return controller_pb2.LeaseAttemptsResponse(leases=granted)

    async def Heartbeat(self, request: Any, context: Any) -> controller_pb2.HeartbeatResponse:
        if self.heartbeat_error:
            raise self.heartbeat_error
        self.heartbeats.append(request)
        held = {(ref.attempt_id, ref.epoch) for ref in request.leases}
        refs = [
            [controller_pb2.LeaseRef(attempt_id=a, epoch=e) for a, e in which if (a, e) in held]
            for which in (self.lost, self.cancelled)
        ]
        return controller_pb2.HeartbeatResponse(lost=refs[0], cancelled=refs[1])

    async def Complete(self, request: Any, context: Any) -> controller_pb2.CompleteResponse:
        self.completed.append(request)
        return controller_pb2.CompleteResponse(will_retry=request.HasField("retry"))

    def failures(self) -> list[str]:
        return [outcome_pb2.Failure.Name(c.retry.failure)[8:].lower() for c in self.completed if c.HasField("retry")]


class FakeScheduler(sandbox_pb2_grpc.SandboxServiceServicer):
    def __init__(self) -> None:
        self.agent_address = ""
        self.claims: list[sandbox_pb2.ClaimSandboxRequest] = []
        self.deleted: list[str] = []
        self.renewed: list[str] = []
        self.error: LongshoreError | None = None
        self.claim_delay_s = 0.0
        self.delete_delay_s = 0.0
        self.end_reason = 0

    async def ClaimSandbox(self, request: Any, context: Any) -> sandbox_pb2.ClaimSandboxResponse:
        self.claims.append(request)
        await asyncio.sleep(self.claim_delay_s)
        if self.error:
            raise self.error
        sandbox = sandbox_pb2.Sandbox(
            sandbox_id=f"sb-{request.idempotency_key}",
            state=sandbox_pb2.SANDBOX_STATE_READY,
            image_digest="sha256:image",
            limits=sandbox_pb2.Limits(cpus=1, memory_mb=256, storage_mb=100, max_processes=64, max_file_mb=50),
        )
        return sandbox_pb2.ClaimSandboxResponse(
            sandbox=sandbox, agent_address=self.agent_address, agent_token=f"token-{request.idempotency_key}"
        )

    async def RenewSandbox(self, request: Any, context: Any) -> sandbox_pb2.RenewSandboxResponse:
        self.renewed.append(request.sandbox_id)
        return sandbox_pb2.RenewSandboxResponse()

    async def GetSandbox(self, request: Any, context: Any) -> sandbox_pb2.GetSandboxResponse:
        ended = sandbox_pb2.SANDBOX_STATE_ENDED if self.end_reason else sandbox_pb2.SANDBOX_STATE_READY
        return sandbox_pb2.GetSandboxResponse(
            sandbox=sandbox_pb2.Sandbox(sandbox_id=request.sandbox_id, state=ended, end_reason=self.end_reason)
        )

    async def DeleteSandbox(self, request: Any, context: Any) -> sandbox_pb2.DeleteSandboxResponse:
        await asyncio.sleep(self.delete_delay_s)
        self.deleted.append(request.sandbox_id)
        return sandbox_pb2.DeleteSandboxResponse()


class FakeAgent(agent_pb2_grpc.AgentServiceServicer):
    """Answers a command with what `run` gives: an Exited, with output before it."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.requests: list[agent_pb2.ExecRequest] = []
        self.tokens: list[str] = []
        self.delay_s = 0.0
        self.error: LongshoreError | None = None
        self.run: Callable[[str], tuple[agent_pb2.Exited, bytes, bytes]] = lambda _: (agent_pb2.Exited(), b"", b"")

    async def Exec(self, request: Any, context: Any) -> AsyncIterator[agent_pb2.ExecResponse]:
        self.requests.append(request)
        self.commands.append(list(request.command))
        self.tokens.append(dict(context.invocation_metadata())["authorization"])
        await asyncio.sleep(min(self.delay_s, request.timeout_s))
        if self.error:
            raise self.error
        exited, stdout, stderr = self.run(request.command[-1])
        if self.delay_s > request.timeout_s:
            exited = agent_pb2.Exited(exit_code=-1, signal=9, timed_out=True)
        exited.stdout_bytes, exited.stderr_bytes = len(stdout), len(stderr)
        for stream, data in ((agent_pb2.STREAM_STDOUT, stdout), (agent_pb2.STREAM_STDERR, stderr)):
            if data:
                yield agent_pb2.ExecResponse(output=agent_pb2.Output(stream=stream, data=data))
        yield agent_pb2.ExecResponse(exited=exited)


class FakeGateway(gateway_pb2_grpc.GatewayServiceServicer):
    """Sessions by gRPC and chat completions as an ASGI app. `reply` maps a request body to (status, headers, body)."""

    def __init__(self) -> None:
        self.http_address = ""
        self.opened: list[gateway_pb2.OpenSessionRequest] = []
        self.closed: list[str] = []
        self.error: LongshoreError | None = None
        self.capture_complete = True
        self.calls: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.delay_s = 0.0
        self.stopping = asyncio.Event()
        self.script: list[Any] = []

    async def OpenSession(self, request: Any, context: Any) -> gateway_pb2.OpenSessionResponse:
        if self.error:
            raise self.error
        self.opened.append(request)
        return gateway_pb2.OpenSessionResponse(
            session_id=f"s-{request.attempt_id}-{request.lease_epoch}",
            token=f"key-{request.attempt_id}",
            base_url=f"http://{self.http_address}/v1",
            model=request.alias,
            start_version=3,
            model_identity=gateway_pb2.ModelIdentity(
                base_digest="sha256:b", tokenizer_digest="sha256:t", template_digest="sha256:c"
            ),
        )

    async def CloseSession(self, request: Any, context: Any) -> gateway_pb2.CloseSessionResponse:
        if request.session_id in self.closed:
            raise NotFound(f"no session {request.session_id}")
        self.closed.append(request.session_id)
        return gateway_pb2.CloseSessionResponse(turns=len(self.calls), capture_complete=self.capture_complete)

    async def _pause(self) -> None:
        if self.delay_s:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.delay_s):
                    await self.stopping.wait()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.calls.append(json.loads(body))
        self.headers.append({key.decode(): value.decode() for key, value in scope["headers"]})
        await self._pause()
        step = self.script.pop(0) if self.script else "done"
        status, headers, answer = step if isinstance(step, tuple) else (200, {}, completion(step))
        encoded = [(key.encode(), value.encode()) for key, value in headers.items()]
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        await send({"type": "http.response.start", "status": status, "headers": encoded})
        await send({"type": "http.response.body", "body": content})


def completion(message: Any, finish: str = "stop", tokens: int = 5) -> dict[str, Any]:
    """A chat completion; message is a text or a whole message."""
    whole = {"role": "assistant", "content": message} if isinstance(message, str) else message
    return {"choices": [{"message": whole, "finish_reason": finish}], "usage": {"completion_tokens": tokens}}


class FakeTrajectory(trajectory_pb2_grpc.TrajectoryServiceServicer):
    def __init__(self) -> None:
        self.sealed: list[trajectory_pb2.SealRequest] = []
        self.errors: list[LongshoreError] = []

    async def Seal(self, request: Any, context: Any) -> trajectory_pb2.SealResponse:
        if self.errors:
            raise self.errors.pop(0)
        self.sealed.append(request)
        return trajectory_pb2.SealResponse()

    def terminations(self) -> list[str]:
        names = [outcome_pb2.Termination.Name(seal.outcome.scored.termination) for seal in self.sealed]
        return [name.removeprefix("TERMINATION_").lower() for name in names]


class FakeVerifier(verifier_pb2_grpc.VerifierServiceServicer):
    def __init__(self) -> None:
        self.requests: list[verifier_pb2.VerifyRequest] = []
        self.answer = verifier_pb2.VerifyResponse(
            reward=outcome_pb2.Reward(reward=1.0, file_name="reward.txt"), seconds=0.5
        )
        self.error: LongshoreError | None = None

    async def Verify(self, request: Any, context: Any) -> verifier_pb2.VerifyResponse:
        self.requests.append(request)
        if self.error:
            raise self.error
        return self.answer


class FakeCatalog(catalog_pb2_grpc.CatalogServiceServicer):
    def __init__(self) -> None:
        self.asked = 0
        self.error: LongshoreError | None = None

    async def GetTask(self, request: Any, context: Any) -> catalog_pb2.GetTaskResponse:
        self.asked += 1
        if self.error:
            raise self.error
        return catalog_pb2.GetTaskResponse(task=catalog_pb2.Task(digest=request.task, workdir="/app", agent_user="dev"))


class Stack:
    """All fakes, their address, and workers wired to them."""

    def __init__(self, data_dir: Path) -> None:
        self.controller, self.scheduler, self.agent = FakeController(), FakeScheduler(), FakeAgent()
        self.gateway, self.trajectory = FakeGateway(), FakeTrajectory()
        self.verifier, self.catalog = FakeVerifier(), FakeCatalog()
        self.address = ""
        self._data_dir = data_dir
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Stack":
        app = App(
            name="fakes",
            grpc=[
                GrpcEndpoint("127.0.0.1:0", (), self._register, SECRET),
                GrpcEndpoint(
                    "127.0.0.1:0", (), lambda s: agent_pb2_grpc.add_AgentServiceServicer_to_server(self.agent, s), None
                ),
            ],
            http=[HttpEndpoint("127.0.0.1:0", self.gateway)],
        )
        handle = await self._stack.enter_async_context(running(app))
        self.address, self.scheduler.agent_address = handle.grpc_addresses
        self.gateway.http_address = handle.http_addresses[0]
        return self

    def _register(self, server: grpc.aio.Server) -> None:
        controller_pb2_grpc.add_ControllerServiceServicer_to_server(self.controller, server)
        sandbox_pb2_grpc.add_SandboxServiceServicer_to_server(self.scheduler, server)
        gateway_pb2_grpc.add_GatewayServiceServicer_to_server(self.gateway, server)
        trajectory_pb2_grpc.add_TrajectoryServiceServicer_to_server(self.trajectory, server)
        verifier_pb2_grpc.add_VerifierServiceServicer_to_server(self.verifier, server)
        catalog_pb2_grpc.add_CatalogServiceServicer_to_server(self.catalog, server)

    async def __aexit__(self, *error: Any) -> None:
        self.gateway.stopping.set()
        await self._stack.aclose()

    def settings(self, **changes: Any) -> Settings:
        names = ("controller", "scheduler", "gateway", "trajectory", "verifier", "catalog")
        quick = {"poll_s": 0.05, "heartbeat_s": 0.05, "drain_s": 0.1, "model_patience_s": 0.3}
        addresses = {f"{name}_address": self.address for name in names}
        return Settings(**{"data_dir": self._data_dir, "secret": SECRET, **addresses, **quick, **changes})

    async def start(self, **changes: Any) -> rollout_pb2_grpc.RolloutServiceStub:
        """Starts a real worker; it stops with the stack, before the fakes."""
        handle = await self._stack.enter_async_context(running(await build(self.settings(**changes))))
        channel = open_channel(handle.grpc_addresses[0], SECRET)
        self._stack.push_async_callback(channel.close)
        return rollout_pb2_grpc.RolloutServiceStub(channel)

    def add(self, attempt: str = "g-0", epoch: int = 1, **changes: Any) -> None:
        """Queues a lease."""
        values: dict[str, Any] = {
            "attempt_id": attempt,
            "epoch": epoch,
            "run_id": "run-1",
            "group_id": "g",
            "task_digest": "sha256:task",
            "instruction": "Make a file.",
            "harness_name": "shell",
            "harness_config_json": '{"protocol": "bare", "observation_chars": 12, "command_timeout_s": 2}',
            "policy_alias": "pol",
            "sampling": outcome_pb2.Sampling(temperature=1.0, max_tokens=24, seed=7),
            "max_turns": 4,
            "max_tokens": 100,
            "agent_timeout_s": 10.0,
            "ttl_s": 30.0,
            "purpose": trajectory_pb2.PURPOSE_TRAIN,
            "verifier_digest": "sha256:v",
        }
        self.controller.queue.append(controller_pb2.Lease(regrade=True, **{**values, **changes}))

    async def ended(self, attempts: int = 1) -> None:
        """Waits until so many leases were freed, all their sandboxes deleted and their sessions closed."""
        await until(lambda: len(self.controller.completed) >= attempts)
        await until(lambda: len(self.scheduler.deleted) >= len(self.scheduler.claims) or self.scheduler.error)
        await until(lambda: len(self.gateway.closed) >= len(self.gateway.opened))


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with Stack(tmp_path) as fakes:
        yield fakes


@pytest.fixture
def wait_until() -> Callable[..., Any]:
    return until


@pytest.fixture
def chat() -> Callable[..., dict[str, Any]]:
    return completion
