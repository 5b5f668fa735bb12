"""An engine host with its gRPC server in this process; its vLLM is fake_vllm.py unless told otherwise."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from gateway_harness import SECRET

from longshore.engine.v1 import engine_pb2 as pb
from longshore.engine.v1 import engine_pb2_grpc
from longshore_common.app import running
from longshore_common.digests import tree_digest
from longshore_common.grpc_client import open_channel
from longshore_inference_gateway.engine_host.bootstrap import build
from longshore_inference_gateway.engine_host.settings import Settings

FAKE_VLLM = (sys.executable, str(Path(__file__).with_name("fake_vllm.py")))


@dataclass
class Host:
    """Client side of a running host."""

    stub: engine_pb2_grpc.EngineHostServiceStub
    address: str
    data_dir: Path

    async def serve(self, folder: Path, name: str = "demo-v0", digest: str | None = None) -> pb.EngineStatus:
        request = pb.ServeRequest(base_name=name, uri=str(folder), digest=digest or tree_digest(folder))
        return (await self.stub.Serve(request)).status

    async def status(self) -> pb.EngineStatus:
        return (await self.stub.Status(pb.StatusRequest())).status

    async def settled(self) -> pb.EngineStatus:
        """Once the order is carried out, or has failed."""
        return await self.until(pb.ENGINE_STATE_READY, pb.ENGINE_STATE_FAILED)

    async def until(self, *states: "pb.EngineState.ValueType") -> pb.EngineStatus:
        async with asyncio.timeout(30):
            while (status := await self.status()).state not in states:
                await asyncio.sleep(0.02)
        return status

    async def stop(self, name: str = "demo-v0", instance: str = "") -> pb.EngineStatus:
        return (await self.stub.Stop(pb.StopRequest(base_name=name, instance=instance))).status

    def started(self) -> list[str]:
        """Base names of the engines that were started, in order."""
        file = self.data_dir / "started"
        return [line.split()[1] for line in file.read_text().splitlines()] if file.exists() else []


@contextlib.asynccontextmanager
async def running_host(
    data_dir: Path, *, program: Sequence[str] = FAKE_VLLM, secret: str = SECRET, **fields: Any
) -> AsyncIterator[Host]:
    settings = Settings(data_dir=data_dir, secret=secret, **{"grpc_address": "127.0.0.1:0"} | fields)
    async with running(await build(settings, program)) as handle:
        address = handle.grpc_addresses[0]
        channel = open_channel(address, secret)
        yield Host(engine_pb2_grpc.EngineHostServiceStub(channel), address, data_dir)
        await channel.close()


def kill_engine(pid: int) -> None:
    """kill -9 of vLLM, below its guard."""
    for child in psutil.Process(pid).children():
        child.kill()
