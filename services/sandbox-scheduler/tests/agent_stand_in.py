"""A stand-in for the pod, for tests without a cluster: the real agent as the init of namespaces that root makes here.

Isolation is not its point (tests of the cluster have that); the agent's behaviour is.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from longshore.agent.v1 import agent_pb2
from longshore_common.agent_client import AgentChannels
from longshore_common.errors import LongshoreError
from longshore_sandbox_scheduler.api.agent_tokens import JwtAgentTokens
from longshore_sandbox_scheduler.bootstrap import Common, Parts
from longshore_sandbox_scheduler.domain.model import EndReason, NetworkClass, Template
from longshore_sandbox_scheduler.domain.runtime import ClaimTag, PreparedImage, RemoteAgent, Removed, SandboxEnd
from longshore_sandbox_scheduler.runtimes.bubblewrap.runtime import BubblewrapOptions, BubblewrapRuntime
from longshore_sandbox_scheduler.settings import Settings

REPOSITORY = Path(__file__).resolve().parents[3]
BINARY = REPOSITORY / "build/agent/longshore-agent"
MEMORY = Path("/sys/fs/cgroup/memory")
_START_S = 10.0

_SCRIPT = """
set -e
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=$LOWER,upperdir=$UPPER,workdir=$WORK" "$ROOT"
mkdir -p "$ROOT/proc" "$ROOT/dev" "$ROOT/.longshore/agent" "$ROOT/.longshore/socket" "$ROOT/sys/fs/cgroup/memory"
mount -t proc proc "$ROOT/proc"
mount -t tmpfs -o mode=755 dev "$ROOT/dev"
for node in "null 3" "zero 5" "full 7" "random 8" "urandom 9"; do
  mknod -m 666 "$ROOT/dev/${node% *}" c 1 "${node#* }"
done
ln -s /proc/self/fd "$ROOT/dev/fd"
mount --bind "$AGENT" "$ROOT/.longshore/agent"
mount -o remount,bind,ro "$ROOT/.longshore/agent"
mount --bind "$SOCKET" "$ROOT/.longshore/socket"
[ -z "$CGROUP" ] || mount --bind "$CGROUP" "$ROOT/sys/fs/cgroup/memory"
hostname sandbox
[ -z "$CGROUP" ] || echo 0 > "$CGROUP/cgroup.procs"
cd "$ROOT"
unset LOWER UPPER WORK SOCKET AGENT CGROUP
exec env -u ROOT -u PWD -u OLDPWD setpriv \\
  --bounding-set=-sys_ptrace,-perfmon,-sys_admin,-sys_module,-sys_rawio,-net_admin,-sys_resource \\
  --inh-caps=-all chroot "$ROOT" /.longshore/agent/longshore-agent serve
"""


def require_agent() -> None:
    """Builds the agent where Go is; skips the test where this machine cannot run it so."""
    if os.geteuid() != 0:
        pytest.skip("the stand-in for the pod makes namespaces as root")
    build_agent()


def build_agent() -> None:
    """Builds the agent where Go is; skips the test where there is neither Go nor a built one."""
    if shutil.which("go"):
        subprocess.run([str(REPOSITORY / "tools/build_agent.sh")], check=True, stdout=subprocess.DEVNULL)
    elif not BINARY.exists():
        pytest.skip("no Go toolchain and no build/agent/longshore-agent")


class StandInSandbox:
    """`RunningSandbox` of an agent in namespaces of its own."""

    node = "here"
    image_digest = ""

    def __init__(self, sandbox_id: str, process: subprocess.Popen[bytes], folder: Path, cgroup: Path | None) -> None:
        self.sandbox_id = sandbox_id
        self.instance = f"uid-{sandbox_id}"
        self._process = process
        self._folder = folder
        self._cgroup = cgroup
        self.ended: asyncio.Future[SandboxEnd] = asyncio.get_running_loop().create_future()

    @property
    def enforcement(self) -> Mapping[str, str]:
        memory = "cgroup" if self._cgroup else "advisory"
        return {"memory": memory, "processes": "agent-watchdog", "file_size": "rlimit"}

    @property
    def access(self) -> RemoteAgent:
        return RemoteAgent(f"unix:{self._folder}/socket/agent.sock")

    async def usage_over_limit(self) -> str | None:
        return None

    async def stop(self, end: SandboxEnd) -> None:
        if self.ended.done():
            return
        self._process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(self._process.wait)
        await asyncio.to_thread(self._clean)
        if not self.ended.done():
            self.ended.set_result(end)

    def _clean(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._cgroup is None:
            return
        for _ in range(100):
            try:
                self._cgroup.rmdir()
                return
            except OSError:
                time.sleep(0.02)


class StandInRuntime:
    """`Runtime` whose images are those of bubblewrap and whose sandboxes run the agent."""

    name = "agent"
    networks = frozenset({NetworkClass.NO_NETWORK})
    default_network = NetworkClass.NO_NETWORK
    outlives_scheduler = False

    def __init__(self, settings: Settings, tokens: JwtAgentTokens) -> None:
        self._tokens = tokens
        self._folder = settings.data_dir / "agents"
        self._cache = settings.cache_dir
        limits = {"cpus": 1.0, "memory_mb": 512, "storage_mb": 512, "max_processes": 256, "max_file_mb": 256}
        from longshore_sandbox_scheduler.domain.model import Limits

        options = BubblewrapOptions(
            settings.data_dir,
            settings.cache_dir,
            dict(settings.bases),
            settings.sandbox_uid_base,
            Limits(**limits),
        )
        self._images = BubblewrapRuntime(options)
        self._channels = AgentChannels()
        self._running: dict[str, StandInSandbox] = {}

    async def start(self) -> None:
        await self._images.start()
        self._folder.mkdir(parents=True, exist_ok=True)

    async def stop(self) -> None:
        end = SandboxEnd(EndReason.DELETED, "stopped")
        await asyncio.gather(*(one.stop(end) for one in list(self._running.values())))
        await self._channels.close()
        await self._images.stop()

    async def sweep(self, keep: Collection[str], dry_run: bool = False) -> Sequence[Removed]:
        return []

    async def prepare(self, task: Any, bundle: Any) -> PreparedImage:
        return await self._images.prepare(task, bundle)

    @property
    def population(self) -> int:
        return len(self._running)

    async def find(self, sandbox_id: str, instance: str) -> StandInSandbox | SandboxEnd:
        return self._running.get(sandbox_id, SandboxEnd(EndReason.LOST, "gone"))

    async def launch(self, sandbox_id: str, template: Template, tag: ClaimTag) -> StandInSandbox:
        folder = self._folder / sandbox_id
        for name in ("root", "upper", "work", "socket", "agent"):
            (folder / name).mkdir(parents=True)
        # Its own copy: mountinfo would name the place of the build.
        shutil.copy(BINARY, folder / "agent")
        cgroup = await asyncio.to_thread(_memory_cgroup, sandbox_id, template.limits.memory_mb)
        process = subprocess.Popen(
            ["unshare", "--pid", "--mount", "--uts", "--ipc", "--net", "--fork", "--kill-child", "sh", "-c", _SCRIPT],
            env=self._environment(sandbox_id, template, folder, cgroup),
            stdin=subprocess.DEVNULL,
        )
        sandbox = StandInSandbox(sandbox_id, process, folder, cgroup)
        self._running[sandbox_id] = sandbox
        sandbox.ended.add_done_callback(lambda _: self._running.pop(sandbox_id, None))
        await self._healthy(sandbox, tag)
        return sandbox

    def _environment(self, sandbox_id: str, template: Template, folder: Path, cgroup: Path | None) -> dict[str, str]:
        image = template.image
        return {
            "PATH": os.environ["PATH"],
            "LOWER": ":".join(str(self._cache / layer) for layer in reversed(image.layers)),
            "UPPER": str(folder / "upper"),
            "WORK": str(folder / "work"),
            "ROOT": str(folder / "root"),
            "SOCKET": str(folder / "socket"),
            "AGENT": str(folder / "agent"),
            "CGROUP": str(cgroup or ""),
            "LONGSHORE_AGENT_PUBLIC_KEY": self._tokens.public_key,
            "LONGSHORE_AGENT_SANDBOX_ID": sandbox_id,
            "LONGSHORE_AGENT_INSTANCE": f"uid-{sandbox_id}",
            "LONGSHORE_AGENT_LISTEN": "unix:/.longshore/socket/agent.sock",
            "LONGSHORE_AGENT_WORKDIR": image.workdir,
            "LONGSHORE_AGENT_USER": image.user,
            "LONGSHORE_AGENT_RUNTIME": self.name,
            "LONGSHORE_AGENT_MAX_PROCESSES": str(template.limits.max_processes),
            "LONGSHORE_AGENT_MAX_FILE_MB": str(template.limits.max_file_mb),
            **image.env,
        }

    async def _healthy(self, sandbox: StandInSandbox, tag: ClaimTag) -> None:
        deadline_ms = int(1000 * (time.time() + tag.deadline_s))
        token = self._tokens.mint(sandbox.sandbox_id, sandbox.instance, deadline_ms)
        metadata = (("authorization", f"Bearer {token}"),)
        async with asyncio.timeout(_START_S):
            while True:
                try:
                    stub = self._channels.stub(sandbox.access.address)
                    await stub.Health(agent_pb2.HealthRequest(), metadata=metadata, wait_for_ready=True, timeout=5)
                    return
                except LongshoreError:
                    await asyncio.sleep(0.02)


async def stand_in_parts(settings: Settings, common: Common) -> Parts:
    """For `bootstrap.build`."""
    return Parts(StandInRuntime(settings, common.tokens))


def _memory_cgroup(sandbox_id: str, memory_mb: int) -> Path | None:
    """A memory cgroup of version 1, where this machine lets us make one."""
    path = MEMORY / f"longshore-agent-{sandbox_id}"
    try:
        path.mkdir()
        (path / "memory.limit_in_bytes").write_text(str(memory_mb * 1024 * 1024))
    except OSError:
        return None
    return path
