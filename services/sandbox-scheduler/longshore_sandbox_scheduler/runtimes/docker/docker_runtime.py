"""Sandboxes as containers of a Docker-compatible engine. They end with their scheduler."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from longshore_common.clock import Clock
from longshore_common.errors import Unavailable
from longshore_common.log import get_logger
from longshore_sandbox_scheduler.domain.model import EndReason, NetworkClass, TaskEnvironment, Template
from longshore_sandbox_scheduler.domain.runtime import (
    ClaimTag,
    PreparedImage,
    RemoteAgent,
    Removed,
    SandboxEnd,
    SandboxFailed,
)
from longshore_sandbox_scheduler.runtimes.docker.agent_volume import AgentVolume
from longshore_sandbox_scheduler.runtimes.docker.container_spec import (
    OWNER,
    ContainerOptions,
    container_of,
)
from longshore_sandbox_scheduler.runtimes.docker.ends import create_error, end_of
from longshore_sandbox_scheduler.runtimes.docker.engine_api import EngineApi, EngineError
from longshore_sandbox_scheduler.runtimes.docker.engine_events import EngineEvents, EngineWatch
from longshore_sandbox_scheduler.runtimes.docker.exec_carrier import demultiplexed
from longshore_sandbox_scheduler.runtimes.docker.images import DockerImages
from longshore_sandbox_scheduler.runtimes.folder_lock import FolderLock
from longshore_sandbox_scheduler.runtimes.pod.agent_prober import AgentProber
from longshore_sandbox_scheduler.runtimes.tunnels import Tunnels

log = get_logger(__name__)

_MB = 1024 * 1024
_LAST_LINES = 5


@dataclass(frozen=True)
class DockerRuntimeOptions:
    """Times in seconds."""

    start_timeout_s: float = 60.0
    """From the container's creation until its agent answers."""
    storage_check_s: float = 10.0
    """How often a sandbox's storage is measured, where the engine cannot hold it to a size."""
    ping_s: float = 5.0
    engine_lost_s: float = 30.0
    """An engine that does not answer for so long has lost its sandboxes."""


class DockerSandbox:
    """`domain.runtime.RunningSandbox` of a container."""

    image_digest = ""

    def __init__(self, runtime: DockerRuntime, sandbox_id: str, instance: str, template: Template) -> None:
        self.sandbox_id = sandbox_id
        self.instance = instance
        self.template = template
        self.container_id = ""
        self.ended: asyncio.Future[SandboxEnd] = asyncio.get_running_loop().create_future()
        self.measured_at = float("-inf")
        self._runtime = runtime
        self._access: RemoteAgent | None = None

    @property
    def node(self) -> str:
        return self._runtime.engine_name

    @property
    def enforcement(self) -> Mapping[str, str]:
        return self._runtime.enforcement

    @property
    def access(self) -> RemoteAgent:
        # Kept: one that has ended must not open a tunnel again.
        if self._access is None:
            self._access = self._runtime.way_in(self.sandbox_id, self.instance)
        return self._access

    async def usage_over_limit(self) -> str | None:
        return await self._runtime.storage_over_limit(self)

    async def stop(self, end: SandboxEnd) -> None:
        self.end(end)
        await self._runtime.remove(self.sandbox_id)

    def end(self, end: SandboxEnd) -> bool:
        """The first one stays; whether it is this one."""
        if self.ended.done():
            return False
        self.ended.set_result(end)
        return True


class DockerRuntime:
    """`domain.runtime.Runtime`."""

    name = "docker"
    outlives_scheduler = False
    default_network = NetworkClass.NO_NETWORK

    def __init__(
        self,
        api: EngineApi,
        images: DockerImages,
        volume: AgentVolume,
        tunnels: Tunnels,
        prober: AgentProber,
        clock: Clock,
        containers: ContainerOptions,
        options: DockerRuntimeOptions,
        data_dir: Path,
    ) -> None:
        self._api = api
        self._images = images
        self._volume = volume
        self._tunnels = tunnels
        self._prober = prober
        self._clock = clock
        self._containers = containers
        self._options = options
        self._data_dir = data_dir
        self._lock = FolderLock(data_dir / ".docker-lock")
        self._running: dict[str, DockerSandbox] = {}
        self._starting: set[str] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._events = EngineEvents(api, containers.owner, clock, self._look_at_name, self._look_at_all)
        self._watch = EngineWatch(api, clock, options.ping_s, options.engine_lost_s)
        self.engine_name = ""

    # -- life

    @property
    def networks(self) -> frozenset[NetworkClass]:
        offered = {NetworkClass.NO_NETWORK}
        if self._containers.public_network:
            offered.add(NetworkClass.PUBLIC)
        return frozenset(offered)

    @property
    def enforcement(self) -> Mapping[str, str]:
        """For each limit, what makes it hold on this engine."""
        storage = "engine-quota" if self._containers.storage_quota else "advisory"
        held = {"memory": "cgroup", "cpus": "cgroup", "processes": "agent-watchdog", "file_size": "rlimit"}
        return {**held, "storage": storage}

    @property
    def population(self) -> int:
        return len(self._running.keys() | self._starting)

    async def start(self) -> None:
        """Raises Unavailable without an engine, Conflict when another scheduler uses the data folder."""
        self._lock.take(self._data_dir)
        try:
            found = await self._api.connect()
            if self._containers.public_network:
                await self._api.call("GET", f"/networks/{self._containers.public_network}")
        except EngineError as error:
            self._lock.release()
            raise Unavailable(
                f"the container engine cannot be used: {error.message}; start it, or set docker.engine.host or "
                "DOCKER_HOST",
                retryable=error.retryable,
            ) from error
        self.engine_name = str(found.get("Name", ""))
        for lacking in ("MemoryLimit", "CpuCfsQuota", "PidsLimit"):
            # Podman leaves some of these out.
            if found.get(lacking) is False:
                log.warning("the engine cannot hold containers to a limit", lacking=lacking)
        self._spawn(self._events.run())
        self._spawn(self._watch.run(self._engine_lost))

    async def stop(self) -> None:
        end = SandboxEnd(EndReason.DELETED, "the scheduler was stopped")
        await asyncio.gather(*(one.stop(end) for one in list(self._running.values())), return_exceptions=True)
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._tunnels.close()
        if self._volume.filled:
            await self._remove_volume(self._volume.name)
        self._lock.release()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("work of the docker runtime broke off", error=repr(task.exception()))

    def way_in(self, sandbox_id: str, instance: str) -> RemoteAgent:
        """The way to the agent of a container."""
        return self._tunnels.way_in(sandbox_id, instance)

    # -- images

    async def prepare(self, task: TaskEnvironment, bundle: Callable[[], Awaitable[bytes]]) -> PreparedImage:
        return await self._images.prepare(task, bundle)

    # -- starting

    async def launch(self, sandbox_id: str, template: Template, tag: ClaimTag) -> DockerSandbox:
        sandbox = DockerSandbox(self, sandbox_id, secrets.token_hex(16), template)
        self._starting.add(sandbox_id)
        try:
            async with asyncio.timeout(self._options.start_timeout_s):
                await self._create(sandbox, tag)
                await self._answers(sandbox)
            return sandbox
        except BaseException as error:
            self._volume.doubt()
            await asyncio.shield(self.remove(sandbox_id))
            if isinstance(error, TimeoutError):
                text = f"its agent did not answer within {self._options.start_timeout_s:.0f} s"
                raise SandboxFailed(EndReason.START_FAILED, f"sandbox {sandbox_id}: {text}") from None
            raise
        finally:
            self._starting.discard(sandbox_id)

    async def _create(self, sandbox: DockerSandbox, tag: ClaimTag) -> None:
        template, sandbox_id = sandbox.template, sandbox.sandbox_id
        try:
            await self._volume.ensure(template.image.reference)
            names = self._images.env_of(template.image.reference)
            body = container_of(template, tag, sandbox_id, sandbox.instance, self._volume.name, names, self._containers)
            made = await self._api.call("POST", "/containers/create", params={"name": sandbox_id}, body=body)
            sandbox.container_id = str(made["Id"])
            self._running[sandbox_id] = sandbox
            await self._api.call("POST", f"/containers/{sandbox.container_id}/start")
        except EngineError as error:
            raise create_error(sandbox_id, error) from error

    async def _answers(self, sandbox: DockerSandbox) -> None:
        asking = self._prober.answers(sandbox.access.address, sandbox.sandbox_id, sandbox.instance)
        answers: asyncio.Future[None] = asyncio.ensure_future(asking)
        try:
            waited: set[asyncio.Future[Any]] = {answers, sandbox.ended}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if sandbox.ended.done():
                end = sandbox.ended.result()
                text = f"sandbox {sandbox.sandbox_id} ended as it started: {end.detail}"
                raise SandboxFailed(EndReason.START_FAILED if end.reason is EndReason.LOST else end.reason, text)
            answers.result()
        finally:
            answers.cancel()

    async def find(self, sandbox_id: str, instance: str) -> DockerSandbox | SandboxEnd:
        sandbox = self._running.get(sandbox_id)
        if sandbox is None or sandbox.instance != instance:
            return SandboxEnd(EndReason.LOST, "its scheduler process ended")
        return sandbox.ended.result() if sandbox.ended.done() else sandbox

    # -- ends

    async def _look_at_name(self, name: str) -> None:
        sandbox = self._running.get(name)
        if sandbox is not None:
            await self._look_at(sandbox)

    async def _look_at_all(self) -> None:
        for sandbox in list(self._running.values()):
            await self._look_at(sandbox)

    async def _look_at(self, sandbox: DockerSandbox) -> None:
        try:
            found = await self._api.call("GET", f"/containers/{sandbox.container_id}/json")
        except EngineError as error:
            if error.status != 404:
                raise
            found = None
        end = end_of(found)
        if end is None or sandbox.ended.done():
            return
        if end.reason is EndReason.LOST and (said := await self._last_words(sandbox)):
            end = replace(end, detail=f"{end.detail}: {said}")
        if sandbox.end(end):
            self._spawn(self.remove(sandbox.sandbox_id))

    async def _last_words(self, sandbox: DockerSandbox) -> str:
        """Of the agent: why it did not start."""
        params = {"stdout": "1", "stderr": "1", "tail": str(_LAST_LINES)}
        try:
            raw = await self._api.read(f"/containers/{sandbox.container_id}/logs", params)
        except EngineError:
            return ""
        return demultiplexed(raw).decode(errors="replace").strip()

    def _engine_lost(self, why: str) -> None:
        for sandbox in list(self._running.values()):
            if sandbox.end(SandboxEnd(EndReason.NODE_LOST, why)):
                self._forget(sandbox.sandbox_id)

    async def remove(self, name: str) -> None:
        """Ends a container and forgets it; one that is gone is no error."""
        self._forget(name)
        try:
            await self._api.call("DELETE", f"/containers/{name}", params={"force": "1", "v": "1"})
        except EngineError as error:
            # 409: somebody removes it already. The rest is for the sweep.
            if error.status not in (404, 409):
                log.warning("a container stays until the next sweep", sandbox_id=name, error=error.message)

    def _forget(self, name: str) -> None:
        sandbox = self._running.pop(name, None)
        if sandbox is not None:
            self._tunnels.forget(sandbox.instance)

    async def storage_over_limit(self, sandbox: DockerSandbox) -> str | None:
        """Measures what a container has written, now and then. Raises Unavailable."""
        limit_mb, now = sandbox.template.limits.storage_mb, self._clock.monotonic()
        due = now - sandbox.measured_at >= self._options.storage_check_s
        if self._containers.storage_quota or not limit_mb or not due:
            return None
        sandbox.measured_at = now
        found = await self._api.call("GET", f"/containers/{sandbox.container_id}/json", params={"size": "1"})
        used = int(found.get("SizeRw") or 0)
        if used <= limit_mb * _MB:
            return None
        return f"storage: {used // _MB} MiB written, {limit_mb} MiB allowed"

    # -- sweep

    async def sweep(self, keep: Collection[str], dry_run: bool = False) -> Sequence[Removed]:
        """All of this owner's containers are of this process or of one that has ended."""
        kept = {*self._running, *self._starting, *self._volume.helpers}
        answer = await self._api.call("GET", "/containers/json", params={"all": "1", "filters": self._filters()})
        found = []
        for one in self._ours(answer):
            name = str(one["Names"][0]).lstrip("/")
            if name not in kept:
                found.append(Removed("container", name, "no sandbox of this scheduler"))
                if not dry_run:
                    await self.remove(name)
        return [*found, *await self._sweep_volumes(dry_run)]

    def _filters(self) -> str:
        return json.dumps({"label": [f"{OWNER}={self._containers.owner}"]})

    def _ours(self, objects: Sequence[Mapping[str, Any]] | None) -> list[Mapping[str, Any]]:
        """Checked again: what engines make of several filters differs, and another scheduler's must not go."""
        return [one for one in objects or () if (one.get("Labels") or {}).get(OWNER) == self._containers.owner]

    async def _sweep_volumes(self, dry_run: bool) -> list[Removed]:
        """Of agents that this scheduler no longer brings."""
        answer = await self._api.call("GET", "/volumes", params={"filters": self._filters()})
        old = [str(one["Name"]) for one in self._ours(answer.get("Volumes")) if one["Name"] != self._volume.name]
        removed = []
        for name in old:
            if dry_run or await self._remove_volume(name):
                removed.append(Removed("volume", name, "of an agent that is no longer used"))
        return removed

    async def _remove_volume(self, name: str) -> bool:
        try:
            await self._api.call("DELETE", f"/volumes/{name}")
        except EngineError as error:
            log.info("an agent volume stays", name=name, error=error.message)
            return False
        return True
