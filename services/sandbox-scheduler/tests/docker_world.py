"""A scheduler over a real Docker-compatible engine, with a base image made of this machine's programs."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
import urllib.parse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agent_stand_in import BINARY, build_agent
from scheduler_world import World, start_world

from longshore_sandbox_scheduler.domain.bases import default_bases
from longshore_sandbox_scheduler.runtimes.bubblewrap.base_tree import BaseTree, BaseTrees
from longshore_sandbox_scheduler.runtimes.docker.assembly import DockerSettings
from longshore_sandbox_scheduler.runtimes.docker.engine_api import EngineApi, EngineError, EngineOptions

ENGINE = "LONGSHORE_TEST_ENGINE"
BASE = "longshore/base"
_BASE_LABEL = "longshore.dev/base"
_ULIMIT = 16384
ULIMITS = [{"Name": name, "Soft": _ULIMIT, "Hard": _ULIMIT} for name in ("nofile", "nproc")]
"""An engine that runs in a container itself may not raise limits to its own defaults."""


def require_engine() -> EngineOptions:
    """The engine to test on; skips where none is named: tests make and remove containers and images there."""
    address = os.environ.get(ENGINE, "")
    if not address:
        pytest.skip(f"no container engine: set {ENGINE} to its address (docs/sandboxes.md)")
    build_agent()
    return EngineOptions(address)


@asynccontextmanager
async def open_engine(options: EngineOptions) -> AsyncIterator[EngineApi]:
    """A client of one's own, to see what the runtime has made."""
    api = await EngineApi.open(options)
    try:
        await api.connect()
        yield api
    finally:
        await api.close()


async def ensure_base(api: EngineApi, cache_dir: Path) -> None:
    """Imports the base tree of the bubblewrap runtime as an image, unless the engine has it."""
    (cache_dir / "bases").mkdir(exist_ok=True)
    tree = await asyncio.to_thread(BaseTrees(cache_dir / "bases", default_bases(), None).get, BASE)
    try:
        found = await api.call("GET", f"/images/{BASE}/json")
        if (found["Config"].get("Labels") or {}).get(_BASE_LABEL) == tree.digest:
            return
    except EngineError as error:
        if error.status != 404:
            raise
    changes = f"LABEL {_BASE_LABEL}={tree.digest}"
    params = {"fromSrc": "-", "repo": BASE, "tag": "latest", "changes": changes}
    query = urllib.parse.urlencode(params)
    async with api.streaming("POST", f"/images/create?{query}", {}, await asyncio.to_thread(_packed, tree)) as lines:
        async for line in lines:
            assert "error" not in line, line


def _packed(tree: BaseTree) -> bytes:
    def as_root(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        return info

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(tree.path, ".", filter=as_root)
    return buffer.getvalue()


@asynccontextmanager
async def start_docker_world(
    data_dir: Path, cache_dir: Path, docker: dict[str, Any] | None = None, **changes: Any
) -> AsyncIterator[World]:
    """A scheduler over the test engine."""
    options = require_engine()
    async with open_engine(options) as api:
        await ensure_base(api, cache_dir)
    host = {"Ulimits": ULIMITS}
    settings = DockerSettings(engine=options, agent_binary=BINARY, host=host, **(docker or {}))
    async with start_world(data_dir, cache_dir, runtime="docker", docker=settings, **changes) as world:
        yield world
