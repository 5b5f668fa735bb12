"""`longshore sandbox` over a real scheduler with bubblewrap sandboxes; commands are processes, as users start them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from longshore.sandbox.v1 import sandbox_pb2
from longshore_sandbox_scheduler.runtimes.bubblewrap.runtime import BubblewrapRuntime

sys.path.insert(0, str(Path(__file__).parents[2] / "services/sandbox-scheduler/tests"))

from scheduler_world import World, start_world

Cli = Callable[..., Result]


class Schedulers:
    """A scheduler on its own thread, because commands and tests run event loops of their own."""

    def __init__(self) -> None:
        self.address = ""
        self._world: World | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, data_dir: Path, ready: threading.Event, ended: threading.Event) -> None:
        cache = Path(tempfile.gettempdir()) / f"longshore-test-cache-{os.getuid()}"
        cache.mkdir(exist_ok=True)
        address = f"127.0.0.1:{free_port()}"
        async with start_world(data_dir, cache, grpc_address=address) as world:
            self._loop, self._world, self.address = asyncio.get_running_loop(), world, address
            ready.set()
            await asyncio.to_thread(ended.wait)

    def do(self, work: Callable[[World], Coroutine[Any, Any, Any]]) -> Any:
        """Runs work(world) beside the scheduler."""
        assert self._loop is not None
        assert self._world is not None
        return asyncio.run_coroutine_threadsafe(work(self._world), self._loop).result(60)

    def claim(self, **fields: Any) -> str:
        """A fresh sandbox's id."""
        found: str = self.do(lambda world: world.claim(**fields)).sandbox.sandbox_id
        return found

    def write(self, sandbox: str, script: str) -> None:
        """Runs a shell script in a sandbox, past the CLI."""

        async def work(world: World) -> None:
            grant = await world.scheduler.GrantAccess(sandbox_pb2.GrantAccessRequest(sandbox_id=sandbox))
            agent = world.channels.client(grant.agent_address, grant.agent_token)
            result = await agent.exec(["sh", "-c", script], timeout_s=20)
            assert result.status == 0, result.stderr.joined()

        self.do(work)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def schedulers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Schedulers]:
    served, ready, ended = Schedulers(), threading.Event(), threading.Event()
    data_dir = tmp_path_factory.mktemp("scheduler")
    thread = threading.Thread(target=lambda: asyncio.run(served.serve(data_dir, ready, ended)))
    thread.start()
    try:
        assert ready.wait(60), "the scheduler did not start"
        yield served
    finally:
        ended.set()
        thread.join(30)


@pytest.fixture(scope="module")
def shared(schedulers: Schedulers) -> str:
    """A sandbox for commands that leave nothing which another test would see."""
    return schedulers.claim(run_id="run-1", attempt_id="attempt-1")


@pytest.fixture
def ask(cli: Cli, schedulers: Schedulers) -> Cli:
    """`longshore sandbox ARGS` in this process."""
    return lambda *arguments: cli("sandbox", *arguments, env={"LONGSHORE_SERVER": schedulers.address})


class Processes:
    """`longshore sandbox ARGS` as a process of its own, with bytes for streams."""

    def __init__(self, address: str) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LONGSHORE_")}
        self._environment = {**clean, "LONGSHORE_SERVER": address}
        self._command = [sys.executable, "-m", "longshore_cli", "sandbox"]

    def run(self, *arguments: str, stdin: bytes | None = None, **more: str) -> subprocess.CompletedProcess[bytes]:
        """Without stdin it is empty."""
        return subprocess.run(
            [*self._command, *arguments], input=stdin or b"", capture_output=True, timeout=60, check=False,
            env=self._environment | more,
        )  # fmt: skip

    @contextlib.contextmanager
    def started(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """One that goes on."""
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [*self._command, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, env=self._environment
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                assert stream is not None
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


@pytest.fixture
def processes(schedulers: Schedulers) -> Processes:
    return Processes(schedulers.address)


# -- exec


def test_exec_keeps_both_streams_apart_and_every_byte(processes: Processes, shared: str, tmp_path: Path) -> None:
    data = bytes(range(256)) * 4096
    (tmp_path / "all").write_bytes(data)
    assert processes.run("cp", str(tmp_path / "all"), f"{shared}:/tmp/all").returncode == 0
    done = processes.run("exec", shared, "--", "sh", "-c", r"cat /tmp/all; printf '\377\000err' >&2")
    assert (done.returncode, done.stderr) == (0, b"\xff\x00err")
    assert done.stdout == data


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 1", 1), ("exit 3", 3), ("exit 255", 255), ("kill -TERM $$", 143)]
)
def test_exec_passes_the_exit_code_on(processes: Processes, shared: str, script: str, code: int) -> None:
    assert processes.run("exec", shared, "--", "sh", "-c", script).returncode == code


def test_exec_says_which_signal_ended_the_command(processes: Processes, shared: str) -> None:
    done = processes.run("exec", shared, "--", "sh", "-c", "kill -KILL $$")
    assert (done.returncode, done.stderr) == (137, b"the command was ended by signal 9\n")


def test_exec_forwards_stdin_and_its_end(processes: Processes, shared: str) -> None:
    data = os.urandom(3 * 1024 * 1024)
    done = processes.run("exec", shared, "--", "cat", stdin=data)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == data


def test_exec_goes_on_after_the_end_of_stdin(processes: Processes, shared: str) -> None:
    done = processes.run("exec", shared, "--", "sh", "-c", "cat >/dev/null; echo after", stdin=b"x")
    assert (done.returncode, done.stdout) == (0, b"after\n")


def test_exec_does_not_mind_a_command_that_reads_no_stdin(processes: Processes, shared: str) -> None:
    done = processes.run("exec", shared, "--", "true", stdin=b"x" * 4_000_000)
    assert (done.returncode, done.stderr) == (0, b"")


def test_exec_without_stdin_takes_nothing_of_it(processes: Processes, shared: str) -> None:
    done = processes.run("exec", shared, "-n", "--", "cat", stdin=b"not taken")
    assert (done.returncode, done.stdout) == (0, b"")


def test_exec_streams_while_the_command_runs(processes: Processes, shared: str) -> None:
    with processes.started("exec", shared, "-i", "--", "sh", "-c", "echo one; read x; echo got $x") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"one\n"
        process.stdin.write(b"two\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"got two\n"
        process.stdin.close()
        assert process.wait(30) == 0


def test_exec_user_cwd_env(processes: Processes, shared: str) -> None:
    options = ["--user", "nobody", "--cwd", "/tmp", "--env", "A=1=2", "-e", "FROM_HERE"]
    script = 'id -un; pwd; echo "$A $FROM_HERE"'
    done = processes.run("exec", shared, *options, "--", "sh", "-c", script, FROM_HERE="here")
    assert (done.returncode, done.stdout) == (0, b"nobody\n/tmp\n1=2 here\n"), done.stderr


def test_exec_timeout_is_exit_code_3_and_says_so(processes: Processes, shared: str) -> None:
    done = processes.run("exec", shared, "--timeout", "0.5", "--", "sh", "-c", "echo begun; sleep 100")
    assert (done.returncode, done.stdout) == (3, b"begun\n")
    assert b"timed out after 0.5 s" in done.stderr
    assert b"Traceback" not in done.stderr


def test_exec_says_what_it_left_out(processes: Processes, shared: str) -> None:
    done = processes.run("exec", shared, "--keep-mb", "1", "--", "head", "-c", "5000000", "/dev/zero")
    assert done.returncode == 0
    left_out = 5_000_000 - len(done.stdout)
    assert left_out > 3_000_000
    assert f"[{left_out} bytes of stdout are left out here; see --keep-mb]" in done.stderr.decode()


def test_a_reader_that_goes_away_ends_the_command(processes: Processes, schedulers: Schedulers, shared: str) -> None:
    with processes.started("exec", shared, "-n", "--", "head", "-c", "1000000000000", "/dev/zero") as process:
        assert process.stdout is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.wait(30) == 128 + signal.SIGPIPE
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
    schedulers.write(shared, "! pgrep -x head")


def test_ctrl_c_interrupts_the_command_and_passes_on_how_it_ended(processes: Processes, shared: str) -> None:
    script = "trap 'echo bye; exit 9' INT; echo ready; while :; do sleep 0.1; done"
    with processes.started("exec", shared, "--", "sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == b"bye\n"
        assert process.wait(30) == 9


def test_ctrl_c_lets_go_of_a_command_that_goes_on(processes: Processes, schedulers: Schedulers) -> None:
    sandbox = schedulers.claim()
    script = "trap '' INT; echo ready; exec sleep 321"
    with processes.started("exec", sandbox, "--", "sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr is not None
        assert b"goes on in the sandbox" in process.stderr.read()
    schedulers.write(sandbox, "pgrep -f 'sleep 321'")


def test_a_sandbox_that_ends_meanwhile_is_named_as_the_cause(processes: Processes, schedulers: Schedulers) -> None:
    sandbox = schedulers.claim()
    with processes.started("exec", sandbox, "--", "sh", "-c", "echo ready; sleep 100") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        schedulers.do(lambda world: world.delete(sandbox))
        assert process.wait(30) in (2, 137)
        assert process.stderr is not None
        assert b"it was deleted" in process.stderr.read()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--timeout", "-1", "--", "true"], "--timeout -1: give seconds"),
        (["--timeout", "nan", "--", "true"], "--timeout nan: give seconds"),
        (["--keep-mb", "65", "--", "true"], "less than or equal to 64"),
        (["--env", "=x", "--", "true"], "write NAME=VALUE"),
        (["--env", "NOT_SET_HERE", "--", "true"], "it is not set here"),
        (["--cwd", "relative", "--", "true"], "absolute path"),
        (["--user", "nobody9", "--", "true"], "nobody9"),
        (["--cwd", "/absent", "--", "true"], "/absent"),
        (["--"], "Missing argument"),
    ],
)
def test_bad_arguments_of_exec(ask: Cli, shared: str, arguments: list[str], part: str) -> None:
    result = ask("exec", shared, "-n", *arguments)
    assert result.exit_code == 2, result.output
    assert part in result.output
    assert "Traceback" not in result.output


def test_a_program_that_is_not_there_is_exit_code_127(processes: Processes, shared: str) -> None:
    done = processes.run("exec", shared, "--", "no-such-program")
    assert done.returncode == 127
    assert b"no-such-program" in done.stderr


# -- cp


def test_cp_a_file_there_and_back(ask: Cli, shared: str, tmp_path: Path) -> None:
    data = bytes(range(256)) * 20_000
    (tmp_path / "tool").write_bytes(data)
    (tmp_path / "tool").chmod(0o750)
    result = ask("cp", str(tmp_path / "tool"), f"{shared}:/opt/new/tool")
    assert (result.exit_code, result.stdout) == (0, ""), result.output
    assert f"{len(data)} bytes" in result.stderr
    assert ask("cp", f"{shared}:/opt/new/tool", str(tmp_path / "back")).exit_code == 0
    assert (tmp_path / "back").read_bytes() == data
    assert (tmp_path / "back").stat().st_mode & 0o777 == 0o750


def test_cp_into_folders_keeps_the_name(ask: Cli, shared: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A")
    result = ask("cp", str(tmp_path / "a.txt"), f"{shared}:/app", "-o", "json")
    assert json.loads(result.stdout)["destination"] == f"{shared}:/app/a.txt"
    result = ask("cp", str(tmp_path / "a.txt"), f"{shared}:/not/yet/", "-o", "json")
    assert json.loads(result.stdout)["destination"] == f"{shared}:/not/yet/a.txt"
    (tmp_path / "here").mkdir()
    assert ask("cp", f"{shared}:/app/a.txt", str(tmp_path / "here")).exit_code == 0
    assert (tmp_path / "here/a.txt").read_text() == "A"


def make_tree(root: Path) -> None:
    (root / "sub/empty").mkdir(parents=True)
    (root / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (root / "run.sh").chmod(0o755)
    (root / "sub/data").write_bytes(b"\x00\xff")
    (root / "link").symlink_to("sub/data")
    os.link(root / "sub/data", root / "hard")


def test_cp_a_folder_there_and_back(ask: Cli, schedulers: Schedulers, tmp_path: Path) -> None:
    sandbox = schedulers.claim()
    make_tree(tmp_path / "tree")
    assert ask("cp", str(tmp_path / "tree"), f"{sandbox}:/srv/tree").exit_code == 0
    schedulers.write(sandbox, '[ "$(/srv/tree/run.sh)" = ran ] && [ -d /srv/tree/sub/empty ] && [ -L /srv/tree/link ]')
    result = ask("cp", f"{sandbox}:/srv/tree", str(tmp_path / "back"))
    assert result.exit_code == 0, result.output
    back = tmp_path / "back"
    assert sorted(path.relative_to(back).as_posix() for path in back.rglob("*")) == [
        "hard", "link", "run.sh", "sub", "sub/data", "sub/empty",
    ]  # fmt: skip
    assert os.readlink(back / "link") == "sub/data"
    assert (back / "hard").read_bytes() == b"\x00\xff"
    assert os.access(back / "run.sh", os.X_OK)
    # As cp does it: into a folder that exists, under its own name.
    result = ask("cp", str(tmp_path / "tree"), f"{sandbox}:/srv", "-o", "json")
    assert json.loads(result.stdout)["destination"] == f"{sandbox}:/srv/tree"


def test_cp_refuses_to_unpack_over_what_is_here(ask: Cli, schedulers: Schedulers, shared: str, tmp_path: Path) -> None:
    schedulers.write(shared, "mkdir -p /out && echo new > /out/f")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/out").mkdir()
    result = ask("cp", f"{shared}:/out", str(tmp_path / "kept"))
    assert result.exit_code == 2
    assert "exists here" in result.output
    assert list((tmp_path / "kept/out").iterdir()) == []


def test_cp_brings_no_link_that_leads_out_of_the_folder(
    ask: Cli, schedulers: Schedulers, shared: str, tmp_path: Path
) -> None:
    schedulers.write(shared, "mkdir -p /bad && ln -sf ../../etc/passwd /bad/out && echo x > /bad/first")
    result = ask("cp", f"{shared}:/bad", str(tmp_path / "bad"))
    assert result.exit_code == 2
    assert "leaves the folder" in result.output
    assert os.listdir(tmp_path) == []


def test_cp_takes_no_setuid_and_no_writable_for_all(
    ask: Cli, schedulers: Schedulers, shared: str, tmp_path: Path
) -> None:
    schedulers.write(shared, "echo x > /tmp/suid && chmod 6777 /tmp/suid")
    assert ask("cp", f"{shared}:/tmp/suid", str(tmp_path / "suid")).exit_code == 0
    assert (tmp_path / "suid").stat().st_mode & 0o7777 == 0o755


def test_cp_out_is_bounded_and_leaves_nothing(ask: Cli, schedulers: Schedulers, shared: str, tmp_path: Path) -> None:
    schedulers.write(shared, "head -c 3000000 /dev/zero > /tmp/large")
    result = ask("cp", f"{shared}:/tmp/large", str(tmp_path / "large"), "--max-mb", "1")
    assert result.exit_code == 2
    assert "larger than" in result.output
    assert os.listdir(tmp_path) == []


def test_cp_does_not_replace_a_link_of_the_sandbox(
    ask: Cli, schedulers: Schedulers, shared: str, tmp_path: Path
) -> None:
    schedulers.write(shared, "mkdir -p /real && ln -sfn /real /linked")
    (tmp_path / "f").write_text("x")
    result = ask("cp", str(tmp_path / "f"), f"{shared}:/linked")
    assert result.exit_code == 2
    assert "/linked is a link" in result.output


@pytest.mark.parametrize(
    ("source", "destination", "part"),
    [
        ("a", "b", "exactly one side"),
        ("{}:/a", "{}:/b", "exactly one side"),
        ("./a:/b", "c", "exactly one side"),
        ("{}:relative", "here", "must be absolute"),
        ("{}:/a/../b", "here", "without '..'"),
        ("absent", "{}:/a", "absent: no such file"),
        ("{}:/absent", "here", "/absent: no such file"),
        ("{}:/etc/passwd", "no/such/folder/f", "no such folder"),
        ("{}:/dev/zero", "here", "not a regular file"),
        (".", "{}:/etc/passwd", "/etc/passwd"),
    ],
)
def test_bad_arguments_of_cp(ask: Cli, shared: str, source: str, destination: str, part: str) -> None:
    result = ask("cp", source.format(shared), destination.format(shared))
    assert result.exit_code == 2, result.output
    assert part in result.output
    assert result.output.count("\n") == 1


def test_cp_does_not_pack_devices(ask: Cli, shared: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    result = ask("cp", str(tmp_path), f"{shared}:/tmp/fifos")
    assert result.exit_code == 2
    assert "neither file, folder nor link" in result.output


# -- list, describe


def test_list_shows_network_launch_and_node(ask: Cli, shared: str) -> None:
    header, *lines = ask("list").stdout.splitlines()
    assert header.split() == [
        "SANDBOX", "STATE", "RUNTIME", "NETWORK", "LAUNCH", "NODE", "ATTEMPT", "TASK", "IMAGE", "LIMITS", "AGE",
    ]  # fmt: skip
    line = next(line for line in lines if line.startswith(shared))
    assert line.split()[1:5] == ["ready", "bubblewrap", "no-network", "cold"]
    found = json.loads(ask("list", "--run", "run-1", "-o", "json").stdout)
    assert [one["sandbox_id"] for one in found] == [shared]
    assert json.loads(ask("list", "--run", "none", "-o", "json").stdout) == []


def test_describe_says_limits_and_what_enforces_them(ask: Cli, shared: str) -> None:
    text = ask("describe", shared).stdout
    fields = dict(line.split("  ", 1) for line in text.splitlines())
    assert fields["sandbox"].strip() == shared
    assert fields["run"].strip() == "run-1"
    assert fields["network"].strip() == "no-network"
    assert "not said what enforces it" not in text
    assert fields["limit file_size"].strip() == "512 MiB, enforced by rlimit"
    assert fields["limit storage"].strip() == "2048 MiB, watched only (advisory)"
    assert "ended because" not in fields
    found = json.loads(ask("describe", shared, "-o", "json").stdout)
    assert found["limits"]["max_processes"] == 256
    assert found["enforcement"]["by_limit"]["storage"] == "advisory"


def test_an_ended_sandbox_says_why_and_what_to_do(ask: Cli, schedulers: Schedulers, tmp_path: Path) -> None:
    sandbox = schedulers.claim()
    schedulers.do(lambda world: world.delete(sandbox))
    text = ask("describe", sandbox).stdout
    assert "it was deleted" in text
    assert "what to do" in text
    assert sandbox not in ask("list").stdout
    assert "ended (deleted)" in ask("list", "--all").stdout
    for arguments in (["exec", sandbox, "-n", "--", "true"], ["cp", f"{sandbox}:/f", str(tmp_path)]):
        result = ask(*arguments)
        assert result.exit_code == 2
        assert f"error: sandbox {sandbox} has ended: it was deleted" in result.output


def test_a_lease_that_ran_out_is_told_so(ask: Cli, schedulers: Schedulers) -> None:
    sandbox = schedulers.claim(ttl_s=0.1)
    until = time.monotonic() + 30
    while (found := json.loads(ask("describe", sandbox, "-o", "json").stdout))["state"] != "ended":
        assert time.monotonic() < until, "the lease did not end"
        time.sleep(0.1)
    assert found["end_reason"] == "expired"
    assert found["end_words"].startswith("its lease ran out")
    assert "renew" in found["what_to_do"]


@pytest.mark.parametrize("verb", [["describe", "{}"], ["exec", "{}", "-n", "--", "true"], ["cp", "{}:/f", "."]])
def test_a_sandbox_that_never_was(ask: Cli, verb: list[str]) -> None:
    result = ask(*(word.format("nope") for word in verb))
    assert result.exit_code == 2
    assert "no sandbox 'nope': see `longshore sandbox list --all`" in result.output


def test_every_end_reason_has_words_and_advice() -> None:
    from longshore_cli.plain import enum_name
    from longshore_cli.sandbox.ends import advice

    names = [enum_name(sandbox_pb2.EndReason, value.number) for value in sandbox_pb2.EndReason.DESCRIPTOR.values]
    for name in filter(None, names):
        text = advice({"state": "ended", "end_reason": name, "end_detail": "the detail"})
        assert "(the detail); " in text, name


# -- sweep, pool, top


def test_sweep_dry_run_names_and_sweep_removes(
    processes: Processes, schedulers: Schedulers, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What was made within the last minute may be a sandbox that starts; this one was not.
    monkeypatch.setattr(BubblewrapRuntime, "_young", lambda runtime: [])
    left = schedulers.do(make_orphan)
    done = processes.run("sweep", "--dry-run", "-o", "json")
    assert [(one["kind"], one["name"]) for one in json.loads(done.stdout)] == [("folder", left.name)]
    assert done.stderr == b"1 objects would be removed\n"
    assert left.exists()
    done = processes.run("sweep")
    assert (done.returncode, done.stderr) == (0, b"1 objects removed\n")
    header, line = done.stdout.decode().splitlines()
    assert header.split() == ["KIND", "NAME", "WHY"]
    assert line.split()[:2] == ["folder", left.name]
    assert not left.exists()
    again = processes.run("sweep")
    assert (again.returncode, again.stdout) == (0, b"")


async def make_orphan(world: World) -> Path:
    """A folder that no sandbox of this scheduler owns."""
    path = world.settings.data_dir / "sandboxes" / "sandbox-orphan"
    path.mkdir()
    return path


def test_pools_of_a_runtime_without_any(ask: Cli) -> None:
    assert ask("pool", "-o", "json").stdout == "[]\n"
    assert ask("pool").stdout.split()[:3] == ["TEMPLATE", "IMAGE", "NETWORK"]


def test_top_counts_by_run_state_and_network(ask: Cli, shared: str) -> None:
    value = json.loads(ask("top", "-o", "json").stdout)
    run = next(one for one in value["runs"] if one["run"] == "run-1")
    assert (run["sandboxes"], run["ready"], run["cold"], run["warm"]) == (1, 1, 1, 0)
    assert value["sandboxes"]["by_state"]["ready"] == value["sandboxes"]["total"]
    assert value["sandboxes"]["by_network"] == {"no-network": value["sandboxes"]["total"]}
    assert value["metrics"] is None
    text = ask("top").stdout
    assert "run-1" in text
    assert "no-network" in text


def test_top_reads_the_metrics_page(ask: Cli, shared: str) -> None:
    from prometheus_client import start_http_server

    port = free_port()
    server, _ = start_http_server(port, "127.0.0.1")
    try:
        value = json.loads(ask("top", "--metrics", f"127.0.0.1:{port}", "-o", "json").stdout)
        assert 1 <= value["metrics"]["places taken"] <= value["metrics"]["places"]
        assert value["metrics"]["claims waiting"] == 0
        assert "claims waiting" in ask("top", "--metrics", f"127.0.0.1:{port}").stdout
    finally:
        server.shutdown()
        server.server_close()
    result = ask("top", "--metrics", f"127.0.0.1:{port}")
    assert result.exit_code == 2
    assert "LONGSHORE_SANDBOX_SCHEDULER_METRICS_ADDRESS" in result.output


def test_top_watches_until_interrupted(processes: Processes, shared: str) -> None:
    with processes.started("top", "--watch", "0.1") as process:
        assert process.stdout is not None
        seen = 0
        while seen < 3:
            line = process.stdout.readline()
            assert line, "top ended"
            seen += line.startswith(b"sandboxes")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


def test_top_does_not_watch_backwards(ask: Cli) -> None:
    result = ask("top", "--watch", "-1")
    assert result.exit_code == 2
    assert "--watch -1: give seconds" in result.output


def test_pool_rows_shorten_what_is_long() -> None:
    from longshore_cli.sandbox.views import pool_row

    pool = {
        "template": "abc", "image": "registry.example/task@sha256:" + "a" * 64, "network_class": "gateway_only",
        "limits": {"cpus": 0.5, "memory_mb": 512}, "ready": 3, "starting": 1, "target": 4, "demand": 9, "hits": 5,
        "misses": 2,
    }  # fmt: skip
    assert pool_row(pool) == (
        "abc", "registry.example/task@aaaaaaaaaaaa", "gateway-only", "0.5 cpu, 512 MiB", 3, 1, 4, 9, 5, 2,
    )  # fmt: skip


@pytest.mark.parametrize("verb", ["list", "describe", "exec", "cp", "sweep", "pool", "top"])
def test_nothing_runs_is_said_with_what_to_do(cli: Cli, verb: str, tmp_path: Path) -> None:
    arguments = {"describe": ["s"], "exec": ["s", "-n", "--", "true"], "cp": ["s:/f", "."]}.get(verb, [])
    result = cli("sandbox", verb, "--home", str(tmp_path / "none"), *arguments)
    assert result.exit_code == 2
    assert "longshore up" in result.output
