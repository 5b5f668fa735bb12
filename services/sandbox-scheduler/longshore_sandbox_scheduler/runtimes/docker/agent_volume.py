"""The volume that brings the agent into containers, read-only. Filled through the API: the engine may be elsewhere."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import secrets
import tarfile
from pathlib import Path

from longshore_common.errors import InvalidSpec
from longshore_common.log import get_logger
from longshore_sandbox_scheduler.runtimes.docker.container_spec import AGENT_VOLUME, agent_mount, labels
from longshore_sandbox_scheduler.runtimes.docker.engine_api import EngineApi, EngineError
from longshore_sandbox_scheduler.runtimes.pod.pod_spec import AGENT, AGENT_FOLDER

log = get_logger(__name__)

_MODE = 0o555
_STAT = "x-docker-container-path-stat"


class AgentVolume:
    """One per scheduler and agent binary; made when the first sandbox starts."""

    def __init__(self, api: EngineApi, binary: bytes, owner: str) -> None:
        self._api = api
        self._binary = binary
        self._owner = owner
        digest = hashlib.sha256(owner.encode() + b"\0" + binary).hexdigest()
        self.name = f"longshore-agent-{digest[:24]}"
        self.helpers: set[str] = set()
        """Containers that are there only to fill it."""
        self.filled = False
        """It has been, by this process."""
        self._lock = asyncio.Lock()

    async def ensure(self, image: str) -> None:
        """It is there, whole. image: any that the engine has. Raises EngineError."""
        async with self._lock:
            if not self.filled:
                await self._fill(image)
                self.filled = True

    def doubt(self) -> None:
        """A sandbox did not start: perhaps somebody removed it."""
        self.filled = False

    async def _fill(self, image: str) -> None:
        wanted = {"Name": self.name, "Labels": labels(self._owner, AGENT_VOLUME)}
        try:
            await self._api.call("POST", "/volumes/create", body=wanted)
        except EngineError as error:
            # Docker says nothing of one that exists; Podman does.
            if "already exists" not in error.message:
                raise
        helper = f"longshore-agent-{secrets.token_hex(6)}"
        self.helpers.add(helper)
        body = {
            "Image": image,
            "Entrypoint": [AGENT],
            "Labels": labels(self._owner, AGENT_VOLUME),
            "HostConfig": {"NetworkMode": "none", "Mounts": [agent_mount(self.name, read_only=False)]},
        }
        try:
            await self._api.call("POST", "/containers/create", params={"name": helper}, body=body)
            if not await self._is_whole(helper):
                # Into the volume, without the container ever running.
                path = f"/containers/{helper}/archive"
                await self._api.call("PUT", path, params={"path": AGENT_FOLDER}, tar=_tar_of(self._binary))
        finally:
            await asyncio.shield(self._remove(helper))
            self.helpers.discard(helper)

    async def _is_whole(self, helper: str) -> bool:
        try:
            headers = await self._api.head(f"/containers/{helper}/archive", {"path": AGENT})
        except EngineError as error:
            if error.status == 404:
                return False
            raise
        stat = next((value for name, value in headers.items() if name.lower() == _STAT), "")
        found = json.loads(base64.b64decode(stat) or b"{}")
        return bool(found.get("size") == len(self._binary))

    async def _remove(self, helper: str) -> None:
        try:
            await self._api.call("DELETE", f"/containers/{helper}", params={"force": "1"})
        except EngineError as error:
            if error.status != 404:
                log.warning("a helper container stays until the next sweep", name=helper, error=error.message)


def _tar_of(binary: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo(Path(AGENT).name)
        info.size, info.mode = len(binary), _MODE
        tar.addfile(info, io.BytesIO(binary))
    return buffer.getvalue()


def read_agent(path: Path) -> bytes:
    """The agent's binary. Raises InvalidSpec saying how to get one."""
    try:
        return path.expanduser().read_bytes()
    except OSError as error:
        raise InvalidSpec(
            f"docker.agent_binary: the in-sandbox agent cannot be read: {error}; build it with tools/build_agent.sh "
            "and name the file",
            field="docker.agent_binary",
        ) from error
