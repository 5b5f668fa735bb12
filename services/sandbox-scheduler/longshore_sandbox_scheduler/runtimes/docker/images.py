"""Images of tasks: pulled by name, or built by the engine of the task's own environment."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longshore_common.bundle import pack_tar, unpack
from longshore_common.errors import InvalidSpec, Unavailable
from longshore_sandbox_scheduler.domain.model import EndReason, Image, TaskEnvironment
from longshore_sandbox_scheduler.domain.runtime import PreparedImage, SandboxFailed
from longshore_sandbox_scheduler.runtimes.docker.build_log import last_step, line_named
from longshore_sandbox_scheduler.runtimes.docker.container_spec import labels
from longshore_sandbox_scheduler.runtimes.docker.engine_api import EngineApi, EngineError

_WHERE = "environment/Dockerfile"
_REPOSITORY = "localhost/longshore/environment"
_TAG_LENGTH = 32
_COMPONENT = "environment"
_KEPT_LOG_BYTES = 1024 * 1024
_SHOWN_LOG = 1500
_COMPOSE = ("docker-compose.yaml", "docker-compose.yml")
_AWAY = ("timeout", "timed out", "connection refused", "no such host", "temporary failure", "unreachable", "reset by")
_ABSENT = ("not found", "manifest unknown", "denied", "unauthorized", "no such image", "does not exist")


@dataclass(frozen=True)
class DockerImageOptions:
    """How images come about."""

    pull: bool = True
    """False: only images that the engine has. Of a registry that wants a login: pull ahead with the engine's client."""
    build: Mapping[str, str] = field(default_factory=dict)
    """More parameters of every build call: networkmode, memory, cpuquota."""
    concurrent_builds: int = 2
    kept_logs: int = 200
    """Logs of builds that are kept, the newest."""


@dataclass(frozen=True)
class _Context:
    """What a build sends: the environment folder as tar, and its Dockerfile's text."""

    tar: bytes
    dockerfile: str


class DockerImages:
    """Each environment is built once per engine; a tag by its digest tells."""

    def __init__(self, api: EngineApi, options: DockerImageOptions, owner: str, logs: Path) -> None:
        """logs: folder of the builds' logs."""
        self._api = api
        self._options = options
        self._owner = owner
        self._logs = logs
        self._known: dict[str, Image] = {}
        self._env: dict[str, frozenset[str]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._builds = asyncio.Semaphore(options.concurrent_builds)

    def env_of(self, image_id: str) -> frozenset[str]:
        """Names of the variables that an image sets; of images that `prepare` gave."""
        return self._env.get(image_id, frozenset())

    async def prepare(self, task: TaskEnvironment, bundle: Callable[[], Awaitable[bytes]]) -> PreparedImage:
        """Raises InvalidSpec with the line, SandboxFailed for an image that cannot be pulled, Unavailable."""
        known = self._known.get(task.digest)
        if known is not None and await self._inspect(known.reference) is not None:
            return PreparedImage(known, built=False, seconds=0.0)
        began = time.monotonic()
        async with self._locks.setdefault(task.docker_image or _key(task), asyncio.Lock()):
            found, built = await (self._pulled(task.docker_image) if task.docker_image else self._own(task, bundle))
        image = self._image(found, task)
        self._known[task.digest] = image
        return PreparedImage(image, built, time.monotonic() - began)

    def _image(self, found: Mapping[str, Any], task: TaskEnvironment) -> Image:
        config = found.get("Config") or {}
        self._env[found["Id"]] = frozenset(entry.partition("=")[0] for entry in config.get("Env") or ())
        # The catalog says "/" of a task that names none.
        named = task.workdir if task.workdir != "/" else ""
        return Image(
            digest=_with_algorithm(found["Id"]),
            reference=found["Id"],
            workdir=named or config.get("WorkingDir") or "/",
            user=config.get("User") or "",
        )

    async def _inspect(self, reference: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = await self._api.call("GET", f"/images/{reference}/json")
        except EngineError as error:
            if error.status == 404:
                return None
            if error.status == 400:
                raise InvalidSpec(f"{reference!r}: {error.message}", field="environment.docker_image") from error
            raise
        return found

    # -- by name

    async def _pulled(self, reference: str) -> tuple[dict[str, Any], bool]:
        found = await self._inspect(reference)
        if found is None and self._options.pull:
            await self._pull(reference)
            found = await self._inspect(reference)
        if found is None:
            raise SandboxFailed(
                EndReason.IMAGE_PULL, f"the engine has no image {reference}; pull it there, or allow docker.images.pull"
            )
        return found, False

    async def _pull(self, reference: str) -> None:
        name, at, digest = reference.partition("@")
        tagged = not at and ":" in reference.rpartition("/")[2]
        params = {"fromImage": reference if at else name}
        if at:
            params |= {"fromImage": name, "tag": digest}
        elif not tagged:
            params["tag"] = "latest"
        problem = ""
        try:
            async with self._api.streaming("POST", "/images/create", params) as lines:
                async for line in lines:
                    problem = str(line.get("error") or problem)
        except EngineError as error:
            if error.status == 0:
                raise
            problem = error.message
        if problem:
            absent = any(word in problem.lower() for word in _ABSENT)
            raise SandboxFailed(EndReason.IMAGE_PULL, f"image {reference}: {problem}", retryable=not absent)

    # -- of the task's own

    async def _own(self, task: TaskEnvironment, bundle: Callable[[], Awaitable[bytes]]) -> tuple[dict[str, Any], bool]:
        tag = f"{_REPOSITORY}:{_key(task)}"
        found = await self._inspect(tag)
        if found is not None:
            return found, False
        context = await asyncio.to_thread(_context, await bundle())
        async with self._builds:
            await self._build(context, tag, task)
        found = await self._inspect(tag)
        if found is None:
            raise Unavailable(f"the engine built {tag} and has no such image now; try again")
        return found, True

    async def _build(self, context: _Context, tag: str, task: TaskEnvironment) -> None:
        params = {
            **self._options.build,
            "t": tag,
            "dockerfile": "Dockerfile",
            "rm": "1",
            "forcerm": "1",
            "labels": json.dumps({**labels(self._owner, _COMPONENT), "longshore.dev/environment": _key(task)}),
        }
        log = _Log()
        problem = ""
        try:
            # The end of the connection ends the build.
            async with (
                asyncio.timeout(task.build_timeout_s),
                self._api.streaming("POST", "/build", params, context.tar) as lines,
            ):
                async for line in lines:
                    log.add(str(line.get("stream") or line.get("status") or ""))
                    problem = str(line.get("error") or problem)
        except TimeoutError:
            problem = f"the build did not end within {task.build_timeout_s:.0f} s (build_timeout_sec)"
        except EngineError as error:
            if error.retryable:
                raise
            problem = error.message
        finally:
            await asyncio.to_thread(self._keep, log, problem, _key(task))
        if problem:
            raise _refused(context.dockerfile, log.text(), problem)

    def _keep(self, log: _Log, problem: str, key: str) -> None:
        self._logs.mkdir(parents=True, exist_ok=True)
        (self._logs / f"{key}.log").write_text(log.text() + (f"\nerror: {problem}\n" if problem else ""))
        logs = sorted(self._logs.glob("*.log"), key=lambda path: path.stat().st_mtime)
        for path in logs[: -self._options.kept_logs]:
            path.unlink(missing_ok=True)


class _Log:
    """The end of what a build said."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._size = 0

    def add(self, text: str) -> None:
        self._parts.append(text)
        self._size += len(text)
        if self._size > 2 * _KEPT_LOG_BYTES:
            kept = self.text()[-_KEPT_LOG_BYTES:]
            self._parts, self._size = [kept], len(kept)

    def text(self) -> str:
        return "".join(self._parts)


def _key(task: TaskEnvironment) -> str:
    # Without an environment digest the task's own is the only name of its content.
    return (task.environment_digest or task.digest).removeprefix("sha256:")[:_TAG_LENGTH]


def _with_algorithm(image_id: str) -> str:
    return image_id if image_id.startswith("sha256:") else f"sha256:{image_id}"


def _refused(dockerfile: str, log: str, problem: str) -> Exception:
    line, step = last_step(dockerfile, log)
    line = line_named(problem) if not step else line
    where = f"{_WHERE}:{line}" if line else _WHERE
    if step.upper().startswith("FROM") and any(word in problem.lower() for word in _AWAY):
        return Unavailable(f"{where}: {problem}")
    said = log.strip()[-_SHOWN_LOG:]
    return InvalidSpec(f"{where}: {problem}" + (f"\n{said}" if said else ""), field=where)


def _context(bundle: bytes) -> _Context:
    with tempfile.TemporaryDirectory(prefix="longshore-context-") as folder:
        unpack(bundle, Path(folder))
        root = Path(folder) / "environment"
        for name in _COMPOSE:
            if (root / name).exists():
                raise InvalidSpec(
                    f"environment/{name}: several containers need the pod runtime "
                    "(LONGSHORE_SANDBOX_SCHEDULER_RUNTIME=pod); this is the docker runtime",
                    field=f"environment/{name}",
                )
        if (root / ".dockerignore").exists():
            raise InvalidSpec(
                "environment/.dockerignore is not supported here (engines differ); remove it",
                field="environment/.dockerignore",
            )
        path = root / "Dockerfile"
        if not path.is_file():
            raise InvalidSpec(f"the task has neither {_WHERE} nor environment.docker_image", field=_WHERE)
        try:
            return _Context(pack_tar(root), path.read_bytes().decode())
        except UnicodeDecodeError as error:
            raise InvalidSpec(f"{_WHERE} is not UTF-8: {error}", field=_WHERE) from error
