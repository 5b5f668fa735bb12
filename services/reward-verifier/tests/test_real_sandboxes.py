"""The verifier against real bubblewrap sandboxes and the real catalog, each started alone as its own process."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from longshore.catalog.v1 import catalog_pb2, catalog_pb2_grpc
from longshore.common.v1 import outcome_pb2
from longshore.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from longshore.verifier.v1 import verifier_pb2, verifier_pb2_grpc
from longshore_common.agent_client import AgentChannels, AgentClient
from longshore_common.bundle import pack_folder
from longshore_common.errors import InvalidSpec
from longshore_common.grpc_client import open_channel

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="bubblewrap needs Linux"),
]

SECRET = "test-secret"
SERVICES = ("task_catalog", "sandbox_scheduler", "reward_verifier")
TOML = """
[task]
name = "tests/{name}"
[verifier]
timeout_sec = {timeout}
[verifier.env]
GREETING = "${{HELLO:-hello}}"
[agent]
timeout_sec = 20
[environment]
memory_mb = 128
storage_mb = 64
network_mode = "no-network"
"""
DOCKERFILE = "FROM longshore/base\nWORKDIR /app\nRUN echo start > /app/start.txt\n"
GOOD_TESTS = """#!/bin/bash
if [ "$(cat answer.txt)" = 42 ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
"""
SOLUTION = "#!/bin/sh\necho 42 > answer.txt\n"


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@dataclass(frozen=True)
class Addresses:
    catalog: str
    scheduler: str
    verifier: str


@pytest.fixture(scope="module")
def services() -> Iterator[Addresses]:
    """Catalog, scheduler and verifier as three processes; ended by their pids."""
    catalog, scheduler, verifier = (f"127.0.0.1:{port}" for port in free_ports(3))
    # A long path would not fit into the socket names that a runtime may use below its data_dir.
    with tempfile.TemporaryDirectory(prefix="ls-") as home:
        processes = []
        for name, address in zip(SERVICES, (catalog, scheduler, verifier), strict=True):
            prefix = f"LONGSHORE_{name.upper()}_"
            env = {
                **os.environ,
                "LONGSHORE_SECRET": SECRET,
                f"{prefix}GRPC_ADDRESS": address,
                f"{prefix}DATA_DIR": f"{home}/{name}",
                f"{prefix}CATALOG_ADDRESS": catalog,
                f"{prefix}SCHEDULER_ADDRESS": scheduler,
                f"{prefix}VERIFIER_ADDRESS": verifier,
            }
            Path(home, name).mkdir()
            processes.append(subprocess.Popen([sys.executable, "-m", f"longshore_{name}"], env=env))
        try:
            for address, process in zip((catalog, scheduler, verifier), processes, strict=True):
                wait_for(address, process)
            yield Addresses(catalog, scheduler, verifier)
        finally:
            for process in reversed(processes):
                process.send_signal(signal.SIGTERM)
            codes = [process.wait(20) for process in processes]
        assert codes == [0, 0, 0]


def wait_for(address: str, process: "subprocess.Popen[bytes]", timeout_s: float = 120.0) -> None:
    host, port = address.split(":")
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        assert process.poll() is None, f"{process.args} ended with {process.returncode}"
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(f"nothing listens on {address} after {timeout_s} s")


class World:
    """The three services as stubs, and what a test does with them."""

    def __init__(self, addresses: Addresses) -> None:
        self._channels = [
            open_channel(each, SECRET) for each in (addresses.catalog, addresses.scheduler, addresses.verifier)
        ]
        self.catalog = catalog_pb2_grpc.CatalogServiceStub(self._channels[0])
        self.scheduler = sandbox_pb2_grpc.SandboxServiceStub(self._channels[1])
        self.verifier = verifier_pb2_grpc.VerifierServiceStub(self._channels[2])
        self.agents = AgentChannels()

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()
        await self.agents.close()

    async def task(self, tests: str = GOOD_TESTS, timeout: float = 10, files: Mapping[str, str] | None = None) -> str:
        """Imports a task with this test.sh; its digest."""
        with tempfile.TemporaryDirectory() as folder:
            content = {
                "task.toml": TOML.format(name=f"t{abs(hash((tests, timeout)))}", timeout=timeout),
                "instruction.md": "Write 42 to answer.txt.\n",
                "environment/Dockerfile": DOCKERFILE,
                "tests/test.sh": tests,
                "solution/solve.sh": SOLUTION,
                **(files or {}),
            }
            for name, text in content.items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(text.encode())
            bundle = pack_folder(Path(folder))
        answer = await self.catalog.ImportTask(catalog_pb2.ImportTaskRequest(bundle_tar_zst=bundle))
        return str(answer.task.digest)

    @asynccontextmanager
    async def sandbox(self, digest: str) -> AsyncIterator[tuple[Any, AgentClient]]:
        request = sandbox_pb2.ClaimSandboxRequest(task_digest=digest, run_id="agent", ttl_s=120)
        claim = await self.scheduler.ClaimSandbox(request, timeout=60)
        try:
            yield claim, self.agents.client(claim.agent_address, claim.agent_token)
        finally:
            await self.scheduler.DeleteSandbox(sandbox_pb2.DeleteSandboxRequest(sandbox_id=claim.sandbox.sandbox_id))

    async def verify(self, digest: str, claim: Any, regrade: bool = False) -> Any:
        request = verifier_pb2.VerifyRequest(
            task_digest=digest,
            sandbox_id=claim.sandbox.sandbox_id,
            agent_address=claim.agent_address,
            agent_token=claim.agent_token,
            run_id="verify",
            attempt_id="a",
            regrade=regrade,
        )
        return await self.verifier.Verify(request, timeout=120)

    async def grade(self, tests: str, agent_does: str = "true", regrade: bool = False, timeout: float = 10) -> Any:
        """The verdict on what a command of the agent leaves behind."""
        digest = await self.task(tests, timeout)
        async with self.sandbox(digest) as (claim, agent):
            await agent.exec(["bash", "-c", agent_does], timeout_s=20)
            return await self.verify(digest, claim, regrade)

    async def left_behind(self) -> list[str]:
        listed = await self.scheduler.ListSandboxes(sandbox_pb2.ListSandboxesRequest(run_id="verify"))
        return [each.sandbox_id for each in listed.sandboxes]


@pytest.fixture
async def world(services: Addresses) -> AsyncIterator[World]:
    made = World(services)
    yield made
    assert await made.left_behind() == []
    await made.close()


def failure(verdict: Any) -> str:
    assert verdict.HasField("failed"), verdict
    return outcome_pb2.Failure.Name(verdict.failed.failure).removeprefix("FAILURE_").lower()


def reward(verdict: Any) -> float:
    assert verdict.HasField("reward"), verdict
    return float(verdict.reward.reward)


async def test_right_and_wrong_work_get_1_and_0_with_provenance(world: World) -> None:
    right = await world.grade(GOOD_TESTS, "echo 42 > answer.txt")
    wrong = await world.grade(GOOD_TESTS, "echo 41 > answer.txt")
    assert (reward(right), reward(wrong)) == (1.0, 0.0)
    assert right.reward.file_name == "reward.txt"
    assert right.reward.tamper_resistance == outcome_pb2.TAMPER_RESISTANCE_WEAK
    for digest in (right.reward.file_digest, right.reward.tests_digest, right.reward.image_digest):
        assert digest.startswith("sha256:")


@pytest.mark.parametrize(
    "attack",
    [
        # datacurve-ai/pier#51: rewards written beforehand.
        "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; echo '{\"r\": 1}' > /logs/verifier/reward.json",
        # SWE-bench#631, #538, #601: planted tests.
        "mkdir -p /tests; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh; chmod 555 /tests/* /tests",
        "mkdir -p /mine; rm -rf /tests; ln -s /mine /tests; echo 'echo 1 > /logs/verifier/reward.txt' > /mine/test.sh",
        "rm -rf /logs; mkdir -p /mine/verifier; echo '{\"r\": 1}' > /mine/verifier/reward.json; ln -s /mine /logs",
        "rm -rf /logs; echo file > /logs",
        "rm -rf /logs/verifier; ln -s /app /logs/verifier; echo '{\"reward\": 1}' > /app/reward.json",
        "mkdir -p /logs/verifier/reward.json/deep /tests/deep",
    ],
)
async def test_planted_rewards_and_tests_do_not_count(world: World, attack: str) -> None:
    verdict = await world.grade(GOOD_TESTS, attack)
    assert reward(verdict) == 0.0
    assert verdict.reward.file_name == "reward.txt"


async def test_a_background_process_that_rewrites_the_reward_loses(world: World) -> None:
    loop = (
        "while true; do mkdir -p /logs/verifier; echo '{\"reward\": 1}' > /logs/verifier/reward.json; sleep 0.01; done"
    )
    verdict = await world.grade(
        GOOD_TESTS, f"(setsid bash -c '{loop.replace(chr(39), chr(34))}' >/dev/null 2>&1 &) ; true"
    )
    assert reward(verdict) == 0.0


async def test_processes_that_the_tests_leave_are_gone_before_the_reward_is_read(world: World) -> None:
    late = "(sleep 0.2; echo 0 > /logs/verifier/reward.txt) >/dev/null 2>&1 &"
    tests = f"#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n{late}\n"
    assert reward(await world.grade(tests)) == 1.0


@pytest.mark.parametrize(
    ("tests", "expected"),
    [
        ("echo 1 > /logs/verifier/reward.txt; exit 1\n", 1.0),
        ("#!/usr/bin/env bash\n[[ $GREETING == hello && $PWD == /app ]] && echo 1 > /logs/verifier/reward.txt\n", 1.0),
        ("#!/bin/sh -eu\necho 0.5 > /logs/verifier/reward.txt\nfalse\n", 0.5),
        ("echo '{\"reward\": 0.25}' > /logs/verifier/reward.json; echo 1 > /logs/verifier/reward.txt\n", 0.25),
        ("yes | head -c 3000000; echo 1 > /logs/verifier/reward.txt\n", 1.0),
    ],
)
async def test_odd_scripts_that_grade(world: World, tests: str, expected: float) -> None:
    assert reward(await world.grade(tests)) == expected


@pytest.mark.parametrize(
    ("tests", "expected"),
    [
        ("true\n", "reward_missing"),
        ("#!/no/such/shell\necho 1 > /logs/verifier/reward.txt\n", "reward_missing"),
        (": > /logs/verifier/reward.txt\n", "reward_malformed"),
        ("echo nan > /logs/verifier/reward.txt\n", "reward_malformed"),
        ("echo 1e309 > /logs/verifier/reward.txt\n", "reward_malformed"),
        ("echo '{\"reward\": true}' > /logs/verifier/reward.json\n", "reward_malformed"),
        ("head -c 200000 /dev/zero > /logs/verifier/reward.txt\n", "reward_malformed"),
        ("echo 1 > /app/r; ln -s /app/r /logs/verifier/reward.txt\n", "reward_malformed"),
        ("mkdir /logs/verifier/reward.json\n", "reward_malformed"),
        ("mkfifo /logs/verifier/reward.json\n", "reward_malformed"),
    ],
)
async def test_absent_rewards_are_typed(world: World, tests: str, expected: str) -> None:
    verdict = await world.grade(tests)
    assert failure(verdict) == expected
    assert verdict.failed.evidence


@pytest.mark.parametrize("tests", ["sleep 100\n", "yes\n", "(setsid sleep 100 &); sleep 100\n"])
async def test_tests_that_hang_or_print_for_ever_time_out(world: World, tests: str) -> None:
    """evalscope#1688, deep-swe#1: unbounded output, a loop without end."""
    started = time.monotonic()
    verdict = await world.grade(tests, timeout=1)
    assert failure(verdict) == "verifier_timeout"
    assert time.monotonic() - started < 15


async def test_state_that_only_fails_beside_the_agent_is_graded_afresh(world: World) -> None:
    """What the agent did outside its folder breaks the tests; its work is right."""
    tests = GOOD_TESTS.replace("#!/bin/bash\n", "#!/bin/bash\n[ -e /etc/broken ] && exit 0\n")
    work = "ln -s /bin/sh shell; ln -s answer.txt same; echo 42 > answer.txt; rm start.txt; touch /etc/broken"
    verdict = await world.grade(
        f"{tests}[ -L shell -a -L same -a ! -e start.txt ] || rm /logs/verifier/reward.txt\n", work, True
    )
    assert reward(verdict) == 1.0
    assert verdict.reward.regraded
    assert verdict.reward.tamper_resistance == outcome_pb2.TAMPER_RESISTANCE_STRONG
    assert verdict.first_failure.failure == outcome_pb2.FAILURE_REWARD_MISSING


async def test_an_agent_that_hangs_the_verifier_is_scored_0(world: World) -> None:
    """The tests read a file that the agent made a pipe: they wait for ever, and the oracle's state grades."""
    verdict = await world.grade(
        GOOD_TESTS, "ln -s /dev/tty x; mkfifo /tmp/p; ln -s /tmp/p answer.txt; rm -f x", True, timeout=2
    )
    hang = await world.grade(
        GOOD_TESTS.replace("cat answer.txt", "cat answer.txt; [ -e spin ] && sleep 100"), "touch spin", True, 2
    )
    assert hang.agent_broke_verifier
    assert reward(hang) == 0.0
    assert hang.first_failure.failure == outcome_pb2.FAILURE_VERIFIER_TIMEOUT
    assert verdict.first_failure.failure == outcome_pb2.FAILURE_VERIFIER_TIMEOUT


async def test_tests_that_hang_for_the_oracle_too_are_nobodys_fault(world: World) -> None:
    verdict = await world.grade("sleep 100\n", regrade=True, timeout=1)
    assert failure(verdict) == "verifier_timeout"
    assert not verdict.agent_broke_verifier
    assert "oracle" in verdict.failed.evidence


async def test_an_agent_that_deletes_its_folder_or_its_shell_does_not_escape(world: World) -> None:
    gone = await world.grade(GOOD_TESTS, "cd /; rm -rf /app")
    assert reward(gone) == 0.0
    no_shell = await world.grade(GOOD_TESTS, "rm -f /bin/bash /usr/bin/bash", True)
    assert reward(no_shell) == 0.0
    assert no_shell.reward.regraded


async def test_an_ended_sandbox_is_lost(world: World) -> None:
    digest = await world.task()
    async with world.sandbox(digest) as (claim, _):
        pass
    assert failure(await world.verify(digest, claim)) == "sandbox_lost"


async def test_an_unknown_task_is_verifier_setup_and_an_empty_request_is_refused(world: World) -> None:
    digest = await world.task()
    async with world.sandbox(digest) as (claim, _):
        assert failure(await world.verify("sha256:" + "0" * 64, claim)) == "verifier_setup"
        with pytest.raises(InvalidSpec, match="task_digest"):
            await world.verify("", claim)


async def test_many_at_once(world: World) -> None:
    verdicts = await asyncio.gather(*(world.grade(GOOD_TESTS, "echo 42 > answer.txt") for _ in range(12)))
    assert [reward(verdict) for verdict in verdicts] == [1.0] * 12
