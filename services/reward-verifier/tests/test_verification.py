"""Verify's decisions with an in-memory sandbox: what is done in which order, and what comes of each way to fail."""

import asyncio
import contextlib
import dataclasses
from typing import Any

import pytest

from longshore_common.errors import Internal, InvalidSpec, LongshoreError, NotFound, QuotaExceeded, Unavailable
from longshore_common.sandbox_exec import Captured, ExecResult
from longshore_reward_verifier.domain.outcome import Failure, Graded, GradeFailed, TamperResistance
from longshore_reward_verifier.domain.ports import SandboxEnd


async def test_the_order_is_kill_clear_restore_run_kill_read(kit: Any) -> None:
    bench = kit.bench(kit.rewards("0.5"))
    verdict = await bench.verify()
    graded = verdict.result
    assert isinstance(graded, Graded)
    assert (graded.reward, graded.file_name, graded.tests_digest) == (0.5, "reward.txt", "sha256:tests")
    assert graded.image_digest == "sha256:image"
    assert graded.tamper_resistance is TamperResistance.WEAK
    assert bench.agent.log == [
        "kill_all",
        "stat /logs",
        "remove /logs/verifier /tests",
        "upload /tests",
        "remove /tests",
        "upload /logs/verifier",
        "remove /logs/verifier",
        "stat /app",
        "exec /tests/test.sh",
        "kill_all",
        "stat /logs/verifier/reward.json",
        "stat /logs/verifier/reward.txt",
        "download /logs/verifier/reward.txt",
        "stat /logs/verifier/ctrf.json",
    ]
    assert bench.agent.requests[0] == {
        "command": ["/bin/bash", "/tests/test.sh"],
        "timeout_s": 5.0,
        "env": {"A": "1"},
        "cwd": "/app",
        "user": "",
        "output_cap": 256 * 1024,
    }


@pytest.mark.parametrize(("status", "reward"), [(1, "1"), (0, "0"), (137, "1.0")])
async def test_the_exit_status_does_not_decide(kit: Any, status: int, reward: str) -> None:
    verdict = await kit.bench(kit.rewards(reward, status=status)).verify()
    assert verdict.result.reward == float(reward)
    assert verdict.result.run.exit_status == status


async def test_a_prewritten_reward_does_not_count(kit: Any) -> None:
    """datacurve-ai/pier#51, verifiers#2152: the agent wrote the reward file itself and won."""
    bench = kit.bench(kit.leaves_nothing())
    bench.agent.files |= {"/logs/verifier/reward.txt": b"1", "/logs/verifier/reward.json": b'{"reward": 1}'}
    verdict = await bench.verify(regrade=False)
    assert verdict.result.failure is Failure.REWARD_MISSING


async def test_a_process_that_rewrites_the_reward_is_gone_before_it_is_read(kit: Any) -> None:
    bench = kit.bench(kit.rewards("0"))
    bench.agent.background = lambda agent: agent.files.update({"/logs/verifier/reward.json": b'{"reward": 1}'})
    verdict = await bench.verify()
    assert verdict.result.reward == 0.0


async def test_planted_tests_are_gone(kit: Any) -> None:
    """SWE-bench#631, #538, #601: conftest.py and tests that the agent made before grading."""
    bench = kit.bench(kit.rewards("0"))
    bench.agent.files |= {"/tests/test.sh": b"echo 1 > reward", "/tests/conftest.py": b"evil"}
    await bench.verify()
    assert {name: data for name, data in bench.agent.files.items() if name.startswith("/tests")} == {
        "/tests/test.sh": b"true"
    }


async def test_logs_that_are_a_link_are_removed_first(kit: Any) -> None:
    bench = kit.bench(kit.rewards("0"))
    bench.agent.kinds["/logs"] = "symlink"
    await bench.verify()
    assert "remove /logs /logs/verifier /tests" in bench.agent.log


async def test_reward_json_wins_over_reward_txt(kit: Any) -> None:
    """verifiers#1401, #1674: the priority was swapped."""

    def both(agent: Any) -> ExecResult:
        agent.files |= {"/logs/verifier/reward.json": b'{"reward": 0.25, "a": 1}', "/logs/verifier/reward.txt": b"1"}
        return ExecResult(0)

    verdict = await kit.bench(both).verify()
    assert (verdict.result.reward, verdict.result.file_name) == (0.25, "reward.json")
    assert verdict.result.keys == {"reward": 0.25, "a": 1.0}


async def test_a_malformed_reward_json_is_not_replaced_by_reward_txt(kit: Any) -> None:
    """hud-python#516: a malformed reward.json crashed the grader; here it is a typed failure."""

    def both(agent: Any) -> ExecResult:
        agent.files |= {"/logs/verifier/reward.json": b"oops", "/logs/verifier/reward.txt": b"1"}
        return ExecResult(0)

    verdict = await kit.bench(both).verify(regrade=False)
    assert verdict.result.failure is Failure.REWARD_MALFORMED


@pytest.mark.parametrize(
    ("kind", "content", "word"), [("symlink", b"", "symlink"), ("dir", b"", "dir"), ("", b"1" * 101, "101 bytes")]
)
async def test_a_reward_that_is_no_small_file_is_malformed(kit: Any, kind: str, content: bytes, word: str) -> None:
    def odd(agent: Any) -> ExecResult:
        agent.files["/logs/verifier/reward.txt"] = content
        if kind:
            agent.kinds["/logs/verifier/reward.txt"] = kind
        return ExecResult(0)

    verdict = await kit.bench(odd).verify(regrade=False)
    assert verdict.result.failure is Failure.REWARD_MALFORMED
    assert word in verdict.result.evidence


async def test_ctrf_is_kept_when_it_is_json(kit: Any) -> None:
    def with_ctrf(text: bytes) -> Any:
        def run(agent: Any) -> ExecResult:
            agent.files |= {"/logs/verifier/reward.txt": b"1", "/logs/verifier/ctrf.json": text}
            return ExecResult(0)

        return run

    assert (await kit.bench(with_ctrf(b'{"results": {}}')).verify()).result.ctrf_json == '{"results": {}}'
    assert (await kit.bench(with_ctrf(b"{")).verify()).result.ctrf_json == ""


async def test_output_is_kept_as_head_and_tail(kit: Any) -> None:
    """evalscope#1688: unbounded output of the tests."""

    def noisy(agent: Any) -> ExecResult:
        agent.files["/logs/verifier/reward.txt"] = b"1"
        return ExecResult(0, Captured(b"a" * 30, b"z" * 30, total=10**9), Captured(b"\xffwarn", total=5))

    run = (await kit.bench(noisy).verify()).result.run
    assert run.output_head == "a" * 20
    assert run.output_tail.endswith("--- stderr ---\n�warn")
    assert run.output_truncated


@pytest.mark.parametrize(
    ("tests", "failure"),
    [
        ("hangs", Failure.VERIFIER_TIMEOUT),
        ("eats_memory", Failure.SANDBOX_OOM),
        ("leaves_nothing", Failure.REWARD_MISSING),
    ],
)
async def test_without_regrade_the_first_failure_is_the_answer(kit: Any, tests: str, failure: Failure) -> None:
    """stella#3264, OpenEnv#1025, reef#215: a timeout or a crash of the grader is an absent reward, never 0."""
    bench = kit.bench(getattr(kit, tests)())
    verdict = await bench.verify(regrade=False)
    assert isinstance(verdict.result, GradeFailed)
    assert verdict.result.failure is failure
    assert verdict.first_failure is None
    assert bench.scheduler.claimed == {}


async def test_a_timeout_counts_even_when_a_reward_was_written(kit: Any) -> None:
    def late(agent: Any) -> ExecResult:
        agent.files["/logs/verifier/reward.txt"] = b"1"
        return ExecResult(-1, signal=9, timed_out=True)

    verdict = await kit.bench(late).verify(regrade=False)
    assert verdict.result.failure is Failure.VERIFIER_TIMEOUT


async def test_the_evidence_keeps_what_the_tests_said(kit: Any) -> None:
    """orca-agent#65, MagentaBenchmark#37: a failed download inside test.sh must be visible, and is not reward 0."""
    verdict = await kit.bench(kit.leaves_nothing(100)).verify(regrade=False)
    assert "apt: no network" in verdict.result.evidence
    assert "exit 100" in verdict.result.evidence


@pytest.mark.parametrize("tests", ["hangs", "eats_memory", "leaves_nothing"])
async def test_state_that_grades_in_fresh_conditions_gets_its_reward(kit: Any, tests: str) -> None:
    bench = kit.bench(getattr(kit, tests)(), kit.rewards("1"))
    bench.agent.files = {"/app/made": b"by the agent", "/app/deep/er": b""}
    verdict = await bench.verify()
    assert (verdict.result.reward, verdict.result.regraded) == (1.0, True)
    assert verdict.result.tamper_resistance is TamperResistance.STRONG
    assert verdict.first_failure is not None
    assert not verdict.agent_broke_verifier
    fresh = bench.scheduler.claimed["fresh-0"]
    assert fresh.files["/app/made"] == b"by the agent"
    assert "/app/x" not in fresh.files
    assert bench.scheduler.deleted == ["fresh-0"]


async def test_state_that_does_not_grade_while_the_oracle_does_is_the_agents_fault(kit: Any) -> None:
    bench = kit.bench(kit.hangs(), kit.hangs(), kit.rewards("1"))
    verdict = await bench.verify()
    assert verdict.agent_broke_verifier
    assert (verdict.result.reward, verdict.result.regraded) == (0.0, True)
    assert verdict.result.run.output_head == "waiting\n"
    assert verdict.first_failure.failure is Failure.VERIFIER_TIMEOUT
    oracle = bench.scheduler.claimed["fresh-1"]
    assert oracle.requests[0] == {
        "command": ["/bin/sh", "/solution/solve.sh"],
        "timeout_s": 7.0,
        "env": {"S": "2"},
        "cwd": "/app",
        "user": "",
    }
    assert bench.scheduler.deleted == ["fresh-0", "fresh-1"]


@pytest.mark.parametrize("oracle", ["hangs", "leaves_nothing", "eats_memory"])
async def test_tests_that_fail_the_oracle_too_stay_an_infrastructure_failure(kit: Any, oracle: str) -> None:
    bench = kit.bench(kit.hangs(), kit.leaves_nothing(), getattr(kit, oracle)())
    verdict = await bench.verify()
    assert verdict.result.failure is Failure.REWARD_MISSING
    assert verdict.first_failure.failure is Failure.VERIFIER_TIMEOUT
    assert "oracle in fresh conditions" in verdict.result.evidence
    assert not verdict.agent_broke_verifier


async def test_an_oracle_that_is_only_half_right_blames_nobody(kit: Any) -> None:
    verdict = await kit.bench(kit.hangs(), kit.hangs(), kit.rewards("0.5")).verify()
    assert verdict.result.failure is Failure.VERIFIER_TIMEOUT


async def test_without_an_oracle_nobody_is_blamed(kit: Any) -> None:
    task = dataclasses.replace(kit.task(), solution_tar=None)
    verdict = await kit.bench(kit.hangs(), kit.hangs(), task=task).verify()
    assert verdict.result.failure is Failure.VERIFIER_TIMEOUT


async def test_no_fresh_sandbox_keeps_the_first_failure(kit: Any) -> None:
    bench = kit.bench(kit.hangs())
    bench.scheduler.claim_error = QuotaExceeded("no room", which="sandboxes")
    verdict = await bench.verify()
    assert verdict.result.failure is Failure.VERIFIER_TIMEOUT
    assert "no room" in verdict.result.evidence


async def test_state_too_large_to_export_is_judged_by_the_oracle(kit: Any) -> None:
    bench = kit.bench(kit.hangs(), kit.rewards("1"))
    bench.max_state_bytes = 10
    verdict = await bench.verify()
    assert verdict.agent_broke_verifier
    assert bench.scheduler.claimed["fresh-0"].requests[0]["command"][-1] == "/solution/solve.sh"


async def test_an_export_that_breaks_off_in_a_live_sandbox_blames_nobody(kit: Any) -> None:
    bench = kit.bench(kit.hangs(), kit.rewards("1"))
    bench.agent.errors = {"download /app": Unavailable("cut")}
    verdict = await bench.verify()
    assert verdict.result.failure is Failure.VERIFIER_TIMEOUT
    assert bench.scheduler.claimed == {}


async def test_a_task_in_the_root_folder_is_not_exported_and_nobody_is_blamed(kit: Any) -> None:
    bench = kit.bench(kit.hangs(), task=kit.task(workdir="/"))
    verdict = await bench.verify()
    assert verdict.result.failure is Failure.VERIFIER_TIMEOUT
    assert bench.scheduler.claimed == {}


async def test_a_sandbox_that_ran_out_of_memory_is_judged_by_the_oracle(kit: Any) -> None:
    bench = kit.bench(kit.rewards("1"), kit.rewards("1"))
    bench.agent.errors = {"kill_all": NotFound("gone"), "stat /app": NotFound("gone")}
    bench.scheduler.ends["agents"] = SandboxEnd("sha256:image", "oom", "used 300 MiB")
    verdict = await bench.verify()
    assert verdict.agent_broke_verifier
    assert verdict.first_failure.failure is Failure.SANDBOX_OOM


@pytest.mark.parametrize(
    ("call", "error", "end", "failure"),
    [
        ("upload /tests", Internal("pipe"), "", Failure.VERIFIER_SETUP),
        ("kill_all", Unavailable("gone"), "node_lost", Failure.SANDBOX_LOST),
        ("kill_all", Unavailable("gone"), "evicted", Failure.EVICTED),
        ("exec /tests/test.sh", Unavailable("no exit status"), "", Failure.SANDBOX_LOST),
        ("exec /tests/test.sh", Unavailable("cut"), "expired", Failure.SANDBOX_LOST),
        ("stat /logs/verifier/reward.json", Unavailable("cut"), "", Failure.SANDBOX_LOST),
        # What an agent can bring about in a live sandbox counts as a reward that is missing: it is graded again.
        ("upload /tests", QuotaExceeded("disk full", which="disk"), "", Failure.REWARD_MISSING),
        ("exec /tests/test.sh", InvalidSpec("no such user"), "", Failure.REWARD_MISSING),
    ],
)
async def test_faults_of_a_sandbox_are_typed(
    kit: Any, call: str, error: LongshoreError, end: str, failure: Failure
) -> None:
    bench = kit.bench(kit.rewards("1"))
    bench.agent.errors = {call: error}
    if end:
        bench.scheduler.ends["agents"] = SandboxEnd("sha256:image", end)
    verdict = await bench.verify(regrade=False)
    assert verdict.result.failure is failure
    assert error.message in verdict.result.evidence


async def test_a_sandbox_that_the_scheduler_does_not_know_is_lost(kit: Any) -> None:
    bench = kit.bench(kit.rewards("1"))
    bench.sandbox_id = "unknown"
    bench.agent.errors = {"kill_all": Unavailable("gone")}
    assert (await bench.verify()).result.failure is Failure.SANDBOX_LOST


async def test_an_unknown_task_is_verifier_setup(kit: Any) -> None:
    bench = kit.bench(kit.rewards("1"))
    bench.tasks.task = None
    assert (await bench.verify()).result.failure is Failure.VERIFIER_SETUP


async def test_a_removed_working_folder_still_runs_the_tests(kit: Any) -> None:
    bench = kit.bench(kit.rewards("0"))
    bench.agent.files = {}
    verdict = await bench.verify()
    assert verdict.result.reward == 0.0
    assert bench.agent.requests[0]["cwd"] == "/"


async def test_a_verifier_user_can_write_the_reward(kit: Any) -> None:
    bench = kit.bench(kit.rewards("1"), task=kit.task(verifier_user="tester"))
    await bench.verify()
    assert bench.agent.requests[0]["command"] == ["chmod", "0777", "/logs/verifier"]
    assert bench.agent.requests[1]["user"] == "tester"


async def test_an_agent_user_owns_its_exported_folder(kit: Any) -> None:
    bench = kit.bench(kit.hangs(), kit.rewards("1"), task=kit.task(agent_user="dev"))
    await bench.verify()
    assert bench.scheduler.claimed["fresh-0"].requests[0]["command"] == [
        "chown", "-R", "--no-dereference", "dev", "/app",
    ]  # fmt: skip


async def test_a_caller_that_goes_away_leaves_no_fresh_sandbox(kit: Any) -> None:
    bench = kit.bench(kit.hangs())
    started, claim = asyncio.Event(), bench.scheduler.claim

    async def slow_claim(*args: Any) -> Any:
        started.set()
        await asyncio.sleep(0.05)
        return await claim(*args)

    bench.scheduler.claim = slow_claim
    verifying = asyncio.create_task(bench.verify())
    await started.wait()
    verifying.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await verifying
    assert bench.scheduler.deleted == ["fresh-0"]
