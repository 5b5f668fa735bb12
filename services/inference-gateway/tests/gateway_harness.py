"""A whole gateway with its servers, and a client for both ports."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from longshore.common.v1 import outcome_pb2
from longshore.gateway.v1 import gateway_pb2 as pb
from longshore.gateway.v1 import gateway_pb2_grpc
from longshore_common.app import App, GrpcEndpoint, running
from longshore_common.digests import tree_digest
from longshore_common.grpc_client import open_channel
from longshore_inference_gateway.bootstrap import build
from longshore_inference_gateway.settings import Settings

SECRET = "test-secret"


@contextlib.asynccontextmanager
async def serving_trajectory(fake: Any) -> AsyncIterator[str]:
    endpoint = GrpcEndpoint("127.0.0.1:0", ("longshore.trajectory.v1.TrajectoryService",), fake.register, SECRET)
    async with running(App("fake-trajectory", [endpoint])) as handle:
        yield handle.grpc_addresses[0]


@dataclass
class Gateway:
    """Client side of a running gateway."""

    stub: gateway_pb2_grpc.GatewayServiceStub
    http: aiohttp.ClientSession
    url: str

    async def publish(
        self, folder: Path, version: int, *, alias: str = "demo", incarnation: int = 1, digest: str | None = None
    ) -> pb.PublishPolicyResponse:
        return await self.stub.PublishPolicy(
            pb.PublishPolicyRequest(
                run_id="run-1",
                alias=alias,
                version=version,
                incarnation=incarnation,
                kind=pb.POLICY_KIND_FULL if version == 0 else pb.POLICY_KIND_LORA,
                uri=str(folder),
                digest=digest or tree_digest(folder),
            ),
            timeout=300,
        )

    async def open(self, attempt: str = "a-0", *, epoch: int = 1, **fields: Any) -> pb.OpenSessionResponse:
        sampling = fields.pop("sampling", None) or outcome_pb2.Sampling(temperature=1.0, max_tokens=24)
        return await self.stub.OpenSession(
            pb.OpenSessionRequest(
                run_id="run-1", attempt_id=attempt, lease_epoch=epoch, sampling=sampling, **{"alias": "demo"} | fields
            )
        )

    async def close(self, session_id: str) -> pb.CloseSessionResponse:
        return await self.stub.CloseSession(pb.CloseSessionRequest(session_id=session_id))

    def post(self, token: str, messages: list[dict[str, Any]], **body: Any) -> Any:
        headers = {"authorization": f"Bearer {token}"} | body.pop("headers", {})
        return self.http.post(
            f"{self.url}/v1/chat/completions", json={"model": "x", "messages": messages} | body, headers=headers
        )

    async def chat(self, token: str, messages: list[dict[str, Any]], **body: Any) -> tuple[int, dict[str, Any]]:
        async with self.post(token, messages, **body) as response:
            return response.status, await response.json()

    async def chat_raw(self, token: str, messages: list[dict[str, Any]], **body: Any) -> tuple[int, bytes]:
        async with self.post(token, messages, **body) as response:
            return response.status, await response.read()


def settings(data_dir: Path, trajectory: str, **fields: Any) -> Settings:
    return Settings(
        data_dir=data_dir, trajectory_address=trajectory, secret=SECRET, grpc_address="127.0.0.1:0", **fields
    )


@contextlib.asynccontextmanager
async def running_gateway(config: Settings) -> AsyncIterator[Gateway]:
    async with running(await build(config)) as handle:
        channel = open_channel(handle.grpc_addresses[0], SECRET)
        async with aiohttp.ClientSession() as http:
            yield Gateway(gateway_pb2_grpc.GatewayServiceStub(channel), http, f"http://{handle.http_addresses[0]}")
        await channel.close()
