"""A scheduler with its real launcher, database and gRPC servers; only the task catalog is a stand-in."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio

from longshore.catalog.v1 import catalog_pb2, catalog_pb2_grpc
from longshore.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from longshore_common.agent_client import AgentChannels, AgentClient
from longshore_common.app import running
from longshore_common.bundle import pack_folder
from longshore_common.digests import digest_bytes, tree_digest
from longshore_common.errors import NotFound
from longshore_common.grpc_client import open_channel
from longshore_common.grpc_server import make_server
from longshore_sandbox_scheduler.bootstrap import build, make_parts
from longshore_sandbox_scheduler.settings import Settings

SIMPLE = "FROM longshore/base\nWORKDIR /app\n"


@dataclass
class FakeCatalog(catalog_pb2_grpc.CatalogServiceServicer):
    """Tasks given as files, in memory."""

    tasks: dict[str, catalog_pb2.Task] = field(default_factory=dict)
    bundles: dict[str, bytes] = field(default_factory=dict)
    bundle_calls: int = 0

    def add(self, files: Mapping[str, str | bytes], **limits: Any) -> str:
        """Adds a task of these files; its digest."""
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for name, content in {"task.toml": "", **files}.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.encode() if isinstance(content, str) else content)
                if name.endswith(".sh"):
                    path.chmod(0o755)
            bundle = pack_folder(root)
            environment = root / "environment"
            environment_digest = tree_digest(environment) if environment.exists() else ""
        digest = digest_bytes(bundle + repr(sorted(limits.items())).encode())
        task_limits = catalog_pb2.TaskLimits(**limits)
        self.tasks[digest] = catalog_pb2.Task(digest=digest, environment_digest=environment_digest, limits=task_limits)
        self.bundles[digest] = bundle
        return digest

    def dockerfile(self, text: str | bytes, **limits: Any) -> str:
        """Adds a task of this Dockerfile."""
        return self.add({"environment/Dockerfile": text}, **limits)

    async def GetTask(self, request: catalog_pb2.GetTaskRequest, context: Any) -> catalog_pb2.GetTaskResponse:
        if request.task not in self.tasks:
            raise NotFound(f"no task {request.task}")
        return catalog_pb2.GetTaskResponse(task=self.tasks[request.task])

    async def GetBundle(self, request: catalog_pb2.GetBundleRequest, context: Any) -> catalog_pb2.GetBundleResponse:
        self.bundle_calls += 1
        return catalog_pb2.GetBundleResponse(bundle_tar_zst=self.bundles[request.digest])


@dataclass
class World:
    """A running scheduler and what a test needs to use it."""

    scheduler: Any
    catalog: FakeCatalog
    settings: Settings
    channels: AgentChannels

    async def claim(self, task: str = "", **fields: Any) -> sandbox_pb2.ClaimSandboxResponse:
        """Claims a sandbox; without a task one of the plain base."""
        request = sandbox_pb2.ClaimSandboxRequest(task_digest=task or self.catalog.dockerfile(SIMPLE), **fields)
        answer: sandbox_pb2.ClaimSandboxResponse = await self.scheduler.ClaimSandbox(request)
        return answer

    def agent(self, claimed: sandbox_pb2.ClaimSandboxResponse) -> AgentClient:
        """The client of a claimed sandbox."""
        return self.channels.client(claimed.agent_address, claimed.agent_token)

    async def sandbox(self, dockerfile: str = SIMPLE, **limits: int) -> AgentClient:
        """A fresh sandbox of a Dockerfile, with lowered limits."""
        claimed = await self.claim(self.catalog.dockerfile(dockerfile), limits=sandbox_pb2.Limits(**limits))
        return self.agent(claimed)

    async def delete(self, sandbox_id: str) -> None:
        await self.scheduler.DeleteSandbox(sandbox_pb2.DeleteSandboxRequest(sandbox_id=sandbox_id))

    async def get(self, sandbox_id: str) -> sandbox_pb2.Sandbox:
        request = sandbox_pb2.GetSandboxRequest(sandbox_id=sandbox_id)
        return (await self.scheduler.GetSandbox(request)).sandbox


@asynccontextmanager
async def start_catalog(catalog: FakeCatalog) -> AsyncIterator[str]:
    """Serves a catalog; its address."""
    server = make_server(None, "fake-catalog")
    catalog_pb2_grpc.add_CatalogServiceServicer_to_server(catalog, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@asynccontextmanager
async def start_world(
    data_dir: Path, cache_dir: Path, parts_of: Callable[[Settings, Any], Any] = make_parts, **changes: Any
) -> AsyncIterator[World]:
    """A scheduler over data_dir; ends without leaving anything."""
    catalog = FakeCatalog()
    async with start_catalog(catalog) as catalog_address:
        values: dict[str, Any] = {"sweep_interval_s": 0.2, **changes}
        settings = Settings(data_dir=data_dir, cache_dir=cache_dir, catalog_address=catalog_address, **values)
        async with running(await build(settings, parts_of)) as handle:
            secret = settings.secret.get_secret_value()
            channel: grpc.aio.Channel = open_channel(handle.grpc_addresses[0], secret)
            channels = AgentChannels()
            yield World(sandbox_pb2_grpc.SandboxServiceStub(channel), catalog, settings, channels)
            await channels.close()
            await channel.close()
