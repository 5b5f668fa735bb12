"""An in-memory sandbox, scheduler and task source for the verifier's own logic."""

import io
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from longshore_common.errors import LongshoreError, NotFound, QuotaExceeded
from longshore_common.sandbox_exec import Captured, ExecResult, FileStat
from longshore_reward_verifier.domain.grading import GradeLimits, Grader
from longshore_reward_verifier.domain.ports import GradedTask, Sandbox, SandboxEnd
from longshore_reward_verifier.domain.task_spec import TaskSpec
from longshore_reward_verifier.domain.verification import Verifier, VerifyRequest, VerifySettings

REWARD_TXT = "/logs/verifier/reward.txt"
REWARD_JSON = "/logs/verifier/reward.json"


def pack(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


class FakeAgent:
    """Files by path; `tests` and `solve` stand for the scripts: they change files and say how they ended."""

    def __init__(self, tests: "Tests", solve: "Tests") -> None:
        self.files: dict[str, bytes] = {"/app/x": b"1"}
        self.kinds: dict[str, str] = {}
        self.log: list[str] = []
        self.tests, self.solve = tests, solve
        self.errors: dict[str, LongshoreError] = {}
        self.background: Callable[[FakeAgent], None] | None = None
        self.requests: list[dict[str, Any]] = []

    def _note(self, call: str) -> None:
        self.log.append(call)
        if call in self.errors:
            raise self.errors[call]
        if self.background is not None:
            self.background(self)

    async def exec(self, command: Sequence[str], **options: Any) -> ExecResult:
        self.requests.append({"command": list(command), **options})
        self._note(f"exec {command[-1]}")
        script = {"/tests/test.sh": self.tests, "/solution/solve.sh": self.solve}.get(command[-1])
        return script(self) if script else ExecResult(0)

    async def kill_all(self) -> int:
        self.background = None
        self._note("kill_all")
        return 0

    async def remove(self, paths: Sequence[str]) -> None:
        self._note("remove " + " ".join(paths))
        for path in paths:
            gone = [name for name in (*self.files, *self.kinds) if name == path or name.startswith(path + "/")]
            for name in gone:
                self.files.pop(name, None)
                self.kinds.pop(name, None)

    async def stat(self, path: str) -> FileStat:
        self._note(f"stat {path}")
        if path in self.kinds:
            return FileStat(True, self.kinds[path])
        if path in self.files:
            return FileStat(True, "file", len(self.files[path]))
        is_dir = any(name.startswith(path + "/") for name in self.files)
        return FileStat(is_dir, "dir" if is_dir else "")

    async def upload(self, path: str, data: bytes, *, tar: bool = False, replace: bool = False, mode: int = 0) -> None:
        self._note(f"upload {path}")
        if replace:
            await self.remove([path])
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                content = archive.extractfile(member)
                self.files[f"{path}/{member.name}"] = content.read() if content else b""

    async def download(self, path: str, *, max_bytes: int, tar: bool = False) -> bytes:
        self._note(f"download {path}")
        if not tar:
            return self.files[path]
        inside = {name[len(path) + 1 :]: content for name, content in self.files.items() if name.startswith(path + "/")}
        data = pack(inside)
        if len(data) > max_bytes:
            raise QuotaExceeded(f"{path} is larger than {max_bytes}", which="download")
        return data


Tests = Callable[[FakeAgent], ExecResult]


def rewards(value: str, path: str = REWARD_TXT, status: int = 0) -> Tests:
    """Tests that write a reward file."""

    def run(agent: FakeAgent) -> ExecResult:
        agent.files[path] = value.encode()
        return ExecResult(status, Captured(b"ran\n", total=4), duration_s=0.1)

    return run


def leaves_nothing(status: int = 0) -> Tests:
    return lambda _: ExecResult(status, Captured(b"apt: no network\n", total=16))


def hangs() -> Tests:
    return lambda _: ExecResult(-1, Captured(b"waiting\n", total=8), signal=9, timed_out=True)


def eats_memory() -> Tests:
    return lambda _: ExecResult(-1, signal=9, oom_killed=True)


@dataclass
class FakeScheduler:
    """Fresh sandboxes whose scripts are `fresh_tests` (one per claim, the last repeats) and `solve`."""

    fresh_tests: list[Tests]
    solve: Tests = field(default_factory=leaves_nothing)
    claimed: dict[str, FakeAgent] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)
    ends: dict[str, SandboxEnd] = field(default_factory=dict)
    claim_error: LongshoreError | None = None

    async def look_up(self, sandbox_id: str) -> SandboxEnd:
        if sandbox_id == "unknown":
            raise NotFound("no sandbox 'unknown'")
        return self.ends.get(sandbox_id, SandboxEnd("sha256:image"))

    async def claim(self, task_digest: str, run_id: str, attempt_id: str, ttl_s: float) -> Sandbox:
        if self.claim_error:
            raise self.claim_error
        tests = self.fresh_tests[min(len(self.claimed), len(self.fresh_tests) - 1)]
        sandbox_id = f"fresh-{len(self.claimed)}"
        self.claimed[sandbox_id] = FakeAgent(tests, self.solve)
        return Sandbox(sandbox_id, "sha256:image", self.claimed[sandbox_id])

    async def delete(self, sandbox_id: str) -> None:
        self.deleted.append(sandbox_id)


@dataclass
class FakeTasks:
    task: GradedTask | None

    async def get(self, digest: str) -> GradedTask:
        if self.task is None:
            raise NotFound(f"no task {digest}")
        return self.task


@dataclass
class Bench:
    """A verifier, the agent's sandbox, and everything around."""

    agent: FakeAgent
    scheduler: FakeScheduler
    tasks: FakeTasks
    max_state_bytes: int = 1 << 20
    sandbox_id: str = "agents"

    def verifier(self) -> Verifier:
        grader = Grader(self.scheduler, GradeLimits(excerpt_chars=20, reward_bytes=100))
        return Verifier(self.tasks, self.scheduler, grader, VerifySettings(self.max_state_bytes, 2, 10.0))

    async def verify(self, regrade: bool = True) -> Any:
        request = VerifyRequest("sha256:task", "run", "attempt", regrade)
        return await self.verifier().verify(request, Sandbox(self.sandbox_id, "", self.agent))


def task_with(**changes: Any) -> GradedTask:
    spec = {
        "verifier_timeout_s": 5.0,
        "verifier_user": "",
        "verifier_env": {"A": "1"},
        "agent_timeout_s": 7.0,
        "agent_user": "",
        "solution_env": {"S": "2"},
        "workdir": "/app",
    }
    return GradedTask(
        digest="sha256:task",
        spec=TaskSpec(**{**spec, **changes}),
        tests_tar=pack({"test.sh": b"true"}),
        tests_digest="sha256:tests",
        test_argv=("/bin/bash", "/tests/test.sh"),
        solution_tar=pack({"solve.sh": b"true"}),
        solution_argv=("/bin/sh", "/solution/solve.sh"),
    )


class Kit:
    """The helpers above, for tests."""

    rewards = staticmethod(rewards)
    leaves_nothing = staticmethod(leaves_nothing)
    hangs = staticmethod(hangs)
    eats_memory = staticmethod(eats_memory)
    task = staticmethod(task_with)

    @staticmethod
    def bench(tests: Tests, *fresh: Tests, task: GradedTask | None = None, solve: Tests | None = None) -> Bench:
        """The agent's sandbox runs `tests`; the fresh ones run `fresh`, in order."""
        solves = solve or leaves_nothing()
        scheduler = FakeScheduler(list(fresh) or [rewards("1")], solves)
        return Bench(FakeAgent(tests, solves), scheduler, FakeTasks(task or task_with()))


@pytest.fixture
def kit() -> type[Kit]:
    return Kit
