"""One grading in one sandbox: kill, clear, restore the tests, run them, read the reward.

The order is the contract: whatever the agent planted or left running is gone before the tests are there, and what the
tests leave running is gone before the reward is read. The exit status of the tests is recorded and never decides.
"""

import json
from dataclasses import dataclass

from longshore_common.digests import digest_bytes
from longshore_common.errors import ErrorCode, LongshoreError
from longshore_common.sandbox_exec import ExecResult, SandboxAgent
from longshore_reward_verifier.domain.outcome import (
    Failure,
    Graded,
    GradeFailed,
    GradeResult,
    TamperResistance,
    TestRun,
)
from longshore_reward_verifier.domain.ports import GradedTask, Sandbox, Sandboxes
from longshore_reward_verifier.domain.reward_file import (
    MalformedReward,
    ParsedReward,
    parse_reward_json,
    parse_reward_txt,
)

TESTS_DIR = "/tests"
LOGS_DIR = "/logs"
VERIFIER_LOGS = "/logs/verifier"
REWARD_JSON = "reward.json"
REWARD_TXT = "reward.txt"
CTRF_JSON = "ctrf.json"
# Two zero blocks: a tar without entries, for making an empty folder.
EMPTY_TAR = bytes(10240)
# What the agent's state can cause in a live sandbox: no room, no interpreter, no such user or folder.
_STATE_CODES = frozenset({ErrorCode.QUOTA_EXCEEDED, ErrorCode.NOT_FOUND, ErrorCode.INVALID_SPEC})
_END_FAILURES = {
    "oom": Failure.SANDBOX_OOM,
    "evicted": Failure.EVICTED,
    "image_pull": Failure.IMAGE_PULL,
    "quota": Failure.QUOTA,
}


@dataclass(frozen=True)
class GradeLimits:
    """Bounds on what is kept: bytes per output stream, characters per excerpt, bytes per file."""

    output_bytes: int = 256 * 1024
    excerpt_chars: int = 4000
    reward_bytes: int = 64 * 1024
    ctrf_bytes: int = 1024 * 1024


class Grader:
    """Grades what is in a sandbox."""

    def __init__(self, sandboxes: Sandboxes, limits: GradeLimits) -> None:
        self._sandboxes, self._limits = sandboxes, limits

    async def grade(self, sandbox: Sandbox, task: GradedTask, resistance: TamperResistance) -> GradeResult:
        """A reward with provenance, or the typed reason for having none. Never raises LongshoreError."""
        try:
            cwd = await self._prepare(sandbox.agent, task)
        except LongshoreError as error:
            return await self.explain(sandbox, error, "the tests could not be set up", Failure.VERIFIER_SETUP)
        try:
            ended = await self._run_tests(sandbox.agent, task, cwd)
        except LongshoreError as error:
            return await self.explain(sandbox, error, "the tests could not be run", Failure.SANDBOX_LOST)
        run = summarise(ended, self._limits.excerpt_chars)
        if failure := _failure_of(ended, task.spec.verifier_timeout_s):
            return GradeFailed(failure[0], _with_output(failure[1], run), run, sandbox.image_digest)
        try:
            return await self._read(sandbox, task, resistance, run)
        except MalformedReward as error:
            return GradeFailed(Failure.REWARD_MALFORMED, _with_output(str(error), run), run, sandbox.image_digest)
        except LongshoreError as error:
            return await self.explain(sandbox, error, "the reward could not be read", Failure.SANDBOX_LOST)

    async def explain(self, sandbox: Sandbox, error: LongshoreError, what: str, alive: Failure) -> GradeFailed:
        """The failure behind an error of the agent: how the sandbox ended, or `alive` when it did not."""
        evidence = f"{what}: {error.message}"
        try:
            end = await self._sandboxes.look_up(sandbox.sandbox_id)
        except LongshoreError as lookup:
            return GradeFailed(Failure.SANDBOX_LOST, f"{evidence}; {lookup.message}", image_digest=sandbox.image_digest)
        if end.reason:
            evidence = f"{evidence}; the sandbox ended: {end.reason} {end.detail}".rstrip()
            failure = _END_FAILURES.get(end.reason, Failure.SANDBOX_LOST)
        else:
            failure = Failure.REWARD_MISSING if error.code in _STATE_CODES else alive
        return GradeFailed(failure, evidence, image_digest=sandbox.image_digest)

    async def _prepare(self, agent: SandboxAgent, task: GradedTask) -> str:
        """Leaves /tests as in the bundle and /logs/verifier empty; gives the folder in which the tests start."""
        await agent.kill_all()
        logs = await agent.stat(LOGS_DIR)
        planted = [LOGS_DIR] if logs.exists and logs.kind != "dir" else []
        await agent.remove([*planted, VERIFIER_LOGS, TESTS_DIR])
        await agent.upload(TESTS_DIR, task.tests_tar, tar=True, replace=True)
        await agent.upload(VERIFIER_LOGS, EMPTY_TAR, tar=True, replace=True)
        if task.spec.verifier_user not in ("", "root", "0"):
            await agent.exec(["chmod", "0777", VERIFIER_LOGS], timeout_s=30, cwd="/")
        if not task.spec.workdir:
            return ""
        # The agent may have removed its own folder: the tests still run, and decide.
        return task.spec.workdir if (await agent.stat(task.spec.workdir)).exists else "/"

    async def _run_tests(self, agent: SandboxAgent, task: GradedTask, cwd: str) -> ExecResult:
        ended = await agent.exec(
            task.test_argv,
            timeout_s=task.spec.verifier_timeout_s,
            env=task.spec.verifier_env,
            cwd=cwd,
            user=task.spec.verifier_user,
            output_cap=self._limits.output_bytes,
        )
        await agent.kill_all()
        return ended

    async def _read(
        self, sandbox: Sandbox, task: GradedTask, resistance: TamperResistance, run: TestRun
    ) -> Graded | GradeFailed:
        for name, parse in ((REWARD_JSON, parse_reward_json), (REWARD_TXT, parse_reward_txt)):
            content = await self._reward_bytes(sandbox.agent, name)
            if content is not None:
                parsed: ParsedReward = parse(content)
                return Graded(
                    reward=parsed.reward,
                    keys=parsed.keys,
                    file_name=name,
                    file_digest=digest_bytes(content),
                    tests_digest=task.tests_digest,
                    image_digest=sandbox.image_digest,
                    run=run,
                    tamper_resistance=resistance,
                    ctrf_json=await self._ctrf(sandbox.agent),
                )
        message = f"the tests left neither {VERIFIER_LOGS}/{REWARD_JSON} nor {REWARD_TXT} (exit {run.exit_status})"
        return GradeFailed(Failure.REWARD_MISSING, _with_output(message, run), run, sandbox.image_digest)

    async def _reward_bytes(self, agent: SandboxAgent, name: str) -> bytes | None:
        path = f"{VERIFIER_LOGS}/{name}"
        found = await agent.stat(path)
        if not found.exists:
            return None
        if found.kind != "file":
            raise MalformedReward(f"{path} is a {found.kind}, not a file")
        if found.size > self._limits.reward_bytes:
            raise MalformedReward(f"{path} has {found.size} bytes, more than {self._limits.reward_bytes}")
        return await agent.download(path, max_bytes=self._limits.reward_bytes)

    async def _ctrf(self, agent: SandboxAgent) -> str:
        """ctrf.json as text; empty when it is absent, too large or not JSON: it explains, it never decides."""
        path = f"{VERIFIER_LOGS}/{CTRF_JSON}"
        found = await agent.stat(path)
        if found.kind != "file" or found.size > self._limits.ctrf_bytes:
            return ""
        text = (await agent.download(path, max_bytes=self._limits.ctrf_bytes)).decode("utf-8", "replace")
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return ""
        return text


def summarise(ended: ExecResult, excerpt_chars: int) -> TestRun:
    """Exit status and excerpts of the output: stdout, then stderr, head and tail of at most excerpt_chars each."""
    output = ended.stdout.joined()
    if ended.stderr.total:
        output = output + b"\n--- stderr ---\n" + ended.stderr.joined() if output else ended.stderr.joined()
    text = output.decode("utf-8", "replace").replace("\0", "")
    rest = text[excerpt_chars:]
    return TestRun(
        exit_status=ended.status,
        output_head=text[:excerpt_chars],
        output_tail=rest[-excerpt_chars:],
        output_truncated=ended.stdout.truncated or ended.stderr.truncated or len(rest) > excerpt_chars,
        duration_s=ended.duration_s,
    )


def _failure_of(ended: ExecResult, timeout_s: float) -> tuple[Failure, str] | None:
    if ended.oom_killed:
        return Failure.SANDBOX_OOM, "the tests ran out of memory"
    if ended.timed_out:
        return Failure.VERIFIER_TIMEOUT, f"the tests did not end within {timeout_s:g} s"
    return None


def _with_output(message: str, run: TestRun) -> str:
    tail = (run.output_tail or run.output_head)[-500:].strip()
    return f"{message}; output ends: {tail}" if tail else message
