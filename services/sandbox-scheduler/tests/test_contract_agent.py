"""The contract of every sandbox runtime, over the real AgentService. A new runtime adds one value to `agent_world`.

Names of public bugs are those of the anchors (kubernetes#..., inspect_ai#...): what each runtime must not have.
"""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from agent_stand_in import require_agent, stand_in_parts
from docker_world import start_docker_world
from pod_world import start_pod_world
from scheduler_world import World, start_world

from longshore.agent.v1 import agent_pb2, agent_pb2_grpc
from longshore_common.agent_client import AgentClient
from longshore_common.digests import digest_bytes
from longshore_common.errors import Conflict, InvalidSpec, NotFound, PermissionDenied, QuotaExceeded, Unavailable
from longshore_common.grpc_client import mapped, mapped_stream, open_channel

pytestmark = pytest.mark.asyncio(loop_scope="module")


@asynccontextmanager
async def _bubblewrap(data_dir: Path, cache_dir: Path) -> AsyncIterator[World]:
    async with start_world(data_dir, cache_dir) as world:
        yield world


@asynccontextmanager
async def _agent(data_dir: Path, cache_dir: Path) -> AsyncIterator[World]:
    require_agent()
    async with start_world(data_dir, cache_dir, stand_in_parts) as world:
        yield world


@asynccontextmanager
async def _pod_exec(data_dir: Path, cache_dir: Path) -> AsyncIterator[World]:
    async with start_pod_world(data_dir, cache_dir, {"agent_through_api": True}) as world:
        yield world


WORLDS = {
    "bubblewrap": _bubblewrap,
    "agent": _agent,
    "docker": start_docker_world,
    "pod": start_pod_world,
    "pod-exec": _pod_exec,
}
ON_THE_CLUSTER = ("pod", "pod-exec")


@pytest_asyncio.fixture(
    params=[pytest.param(name, marks=[pytest.mark.cluster] if name in ON_THE_CLUSTER else []) for name in WORLDS],
    scope="module",
    loop_scope="module",
)
async def agent_world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cache_dir: Path
) -> AsyncIterator[World]:
    """One scheduler for all tests here; each test claims its own sandboxes."""
    async with WORLDS[request.param](tmp_path_factory.mktemp("scheduler"), cache_dir) as world:
        yield world


class Raw:
    """The bare stub of one sandbox, where the client library hides too much."""

    def __init__(self, address: str, token: str) -> None:
        self.channel = open_channel(address)
        self.stub = agent_pb2_grpc.AgentServiceStub(self.channel)
        self.metadata = (("authorization", f"Bearer {token}"),)

    async def exec(self, **fields: Any) -> tuple[bytes, bytes, agent_pb2.Exited]:
        call = self.stub.Exec(agent_pb2.ExecRequest(**{"timeout_s": 10.0, **fields}), metadata=self.metadata)
        streams = {agent_pb2.STREAM_STDOUT: b"", agent_pb2.STREAM_STDERR: b""}
        exited = None
        async for message in mapped_stream(call):
            if message.HasField("output"):
                streams[message.output.stream] += message.output.data
            else:
                assert exited is None
                exited = message.exited
        assert exited is not None
        return streams[agent_pb2.STREAM_STDOUT], streams[agent_pb2.STREAM_STDERR], exited


@pytest_asyncio.fixture(loop_scope="module")
async def raw(agent_world: World) -> AsyncIterator[Raw]:
    claimed = await agent_world.claim()
    stub = Raw(claimed.agent_address, claimed.agent_token)
    yield stub
    await stub.channel.close()


async def _processes(agent: AgentClient) -> str:
    return (await agent.exec(["ps", "-eo", "args"], timeout_s=10)).stdout.head.decode()


@pytest.mark.smoke
async def test_exit_code_streams_and_working_folder(agent_world: World) -> None:
    agent = await agent_world.sandbox()
    result = await agent.exec(["sh", "-c", "pwd; echo err >&2; exit 3"], timeout_s=10)
    assert (result.exit_code, result.stdout.head, result.stderr.head) == (3, b"/app\n", b"err\n")


async def test_env_cwd_and_user(agent_world: World) -> None:
    agent = await agent_world.sandbox("FROM longshore/base\nENV A=image B=image\nWORKDIR /w\n")
    result = await agent.exec(["sh", "-c", "echo $A $B $HOME; pwd"], env={"B": "mine"}, cwd="/tmp", timeout_s=10)
    assert result.stdout.head == b"image mine /root\n/tmp\n"
    with pytest.raises(InvalidSpec, match="nowhere"):
        await agent.exec(["true"], cwd="/nowhere", timeout_s=10)
    with pytest.raises(InvalidSpec, match="ghost"):
        await agent.exec(["true"], user="ghost", timeout_s=10)
    assert (await agent.exec(["id", "-u"], user="root", timeout_s=10)).stdout.head == b"0\n"


async def test_host_environment_does_not_leak(agent_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGSHORE_SECRET_PROBE", "leak")
    agent = await agent_world.sandbox()
    result = await agent.exec(["env"], timeout_s=10)
    assert {line.split(b"=")[0] for line in result.stdout.head.splitlines()} == {b"PATH", b"HOME"}


async def test_missing_program_is_127_as_in_a_shell(agent_world: World) -> None:
    agent = await agent_world.sandbox()
    assert (await agent.exec(["no-such-program"], timeout_s=10)).exit_code == 127
    await agent.upload("/app/plain", b"x", mode=0o644)
    assert (await agent.exec(["/app/plain"], timeout_s=10)).exit_code == 126


async def test_signal_death_is_not_an_exit_code(agent_world: World) -> None:
    agent = await agent_world.sandbox()
    result = await agent.exec(["sh", "-c", "kill -TERM $$"], timeout_s=10)
    assert (result.exit_code, result.signal) == (-1, 15)


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan")])
async def test_timeout_must_be_positive_evalscope_1688(raw: Raw, timeout_s: float) -> None:
    with pytest.raises(InvalidSpec, match="timeout_s"):
        await raw.exec(exec_id="e", command=["true"], timeout_s=timeout_s)


@pytest.mark.smoke
async def test_setsid_survivor_is_killed_on_timeout_codex_4337_inspect_ai_1357(agent_world: World) -> None:
    agent = await agent_world.sandbox()
    await agent.exec(["sh", "-c", "setsid sleep 111 &"], timeout_s=10)
    began = time.monotonic()
    command = "(setsid sleep 300 &); (setsid sh -c 'setsid sleep 301 & sleep 302' &); sleep 303"
    result = await agent.exec(["sh", "-c", command], timeout_s=0.5)
    assert result.timed_out
    assert time.monotonic() - began < 3
    alive = await _processes(agent)
    assert "sleep 30" not in alive
    assert "sleep 111" in alive, "a background process of an earlier command is not this command's"


async def test_timeout_keeps_partial_output_superserve_51_swe_rex_29(agent_world: World) -> None:
    agent = await agent_world.sandbox()
    result = await agent.exec(["sh", "-c", "echo partial; sleep 10"], timeout_s=0.3)
    assert result.timed_out
    assert result.stdout.head == b"partial\n"


async def test_background_child_does_not_hold_the_exec_inspect_complexities(agent_world: World) -> None:
    agent = await agent_world.sandbox()
    began = time.monotonic()
    result = await agent.exec(["bash", "-c", "sleep 300 &"], timeout_s=20)
    assert result.exit_code == 0
    assert time.monotonic() - began < 3
    assert "sleep 300" in await _processes(agent)


async def test_background_writer_is_not_blocked_inspect_ai_792(agent_world: World) -> None:
    agent = await agent_world.sandbox()
    await agent.exec(["sh", "-c", "(head -c 20000000 /dev/zero; echo end > /app/done) &"], timeout_s=10)
    for _ in range(100):
        if (await agent.stat("/app/done")).exists:
            return
        await asyncio.sleep(0.05)
    pytest.fail("the background writer blocked on a pipe that nobody reads")


async def test_bare_cat_gets_end_of_file_swe_rex_281_sandbox_sdk_141(agent_world: World) -> None:
    agent = await agent_world.sandbox()
    began = time.monotonic()
    assert (await agent.exec(["cat"], timeout_s=10)).exit_code == 0
    assert time.monotonic() - began < 2


async def test_stdin_initial_and_half_close(raw: Raw) -> None:
    out, _, exited = await raw.exec(exec_id="a", command=["cat"], stdin=b"x" * 300_000)
    assert (len(out), exited.exit_code) == (300_000, 0)
    running = asyncio.create_task(raw.exec(exec_id="b", command=["cat"], stdin=b"one ", stdin_open=True))
    await asyncio.sleep(0.1)
    for data, eof in ((b"two ", False), (b"three", True)):
        await raw.stub.WriteStdin(agent_pb2.WriteStdinRequest(exec_id="b", data=data, eof=eof), metadata=raw.metadata)
    assert (await running)[0] == b"one two three"
    with pytest.raises(Conflict):
        await raw.stub.WriteStdin(agent_pb2.WriteStdinRequest(exec_id="b", data=b"late"), metadata=raw.metadata)


async def test_raw_bytes_are_kept_inspect_k8s_206(agent_world: World) -> None:
    agent = await agent_world.sandbox()
    assert (await agent.exec(["printf", r"\xd4\x00\xff"], timeout_s=10)).stdout.head == b"\xd4\x00\xff"


async def test_infinite_output_is_bounded_and_said_evalscope_1688(agent_world: World) -> None:
    agent = await agent_world.sandbox()
    result = await agent.exec(["sh", "-c", "printf start; yes ''"], timeout_s=1.0, output_cap=10_000)
    assert result.timed_out
    assert result.stdout.truncated
    assert result.stdout.head.startswith(b"start")
    assert len(result.stdout.head) + len(result.stdout.tail) == 10_000
    assert result.stdout.total > 1_000_000


async def test_large_output_is_whole_or_said_to_be_cut_kubernetes_124571(agent_world: World) -> None:
    agent = await agent_world.sandbox()
    expected = b"".join(b"%d\n" % number for number in range(1, 200_001))
    for _ in range(3):
        result = await agent.exec(["seq", "1", "200000"], timeout_s=20, output_cap=4_000_000)
        assert result.stdout.head + result.stdout.tail == expected
        assert not result.stdout.truncated


async def test_one_gibibyte_of_output(agent_world: World) -> None:
    agent = await agent_world.sandbox()
    result = await agent.exec(["head", "-c", str(1 << 30), "/dev/zero"], timeout_s=60, output_cap=1000)
    assert (result.exit_code, result.stdout.total, result.stdout.truncated) == (0, 1 << 30, True)


async def test_negative_offsets_are_refused(raw: Raw) -> None:
    with pytest.raises(InvalidSpec, match="offset"):
        await raw.exec(exec_id="n", command=["true"], stdout_offset=-1)


@pytest.mark.smoke
async def test_retry_with_the_same_id_runs_once_swe_rex_request_cache(raw: Raw) -> None:
    command = ["sh", "-c", "echo x >> /app/f; cat /app/f; echo n >&2"]
    both = await asyncio.gather(
        raw.exec(exec_id="one", command=command),
        raw.exec(exec_id="one", command=command),
        raw.exec(exec_id="other", command=["true"]),
    )
    again = await raw.exec(exec_id="one", command=command)
    assert both[0] == both[1] == again
    assert again[0] == b"x\n"
    from_offset = await raw.exec(exec_id="one", command=command, stdout_offset=1, stderr_offset=2)
    assert from_offset[:2] == (b"\n", b"")
    with pytest.raises(Conflict, match="another command"):
        await raw.exec(exec_id="one", command=["false"])


@pytest.mark.smoke
async def test_cut_stream_is_attached_again_kubernetes_137404(raw: Raw) -> None:
    request = agent_pb2.ExecRequest(
        exec_id="cut", command=["sh", "-c", "echo a; sleep 1; echo b; exit 3"], timeout_s=10
    )
    call = raw.stub.Exec(request, metadata=raw.metadata)
    first = await call.read()
    assert first.output.data == b"a\n"
    call.cancel()
    request.stdout_offset = 2
    out = b""
    async for message in mapped_stream(raw.stub.Exec(request, metadata=raw.metadata)):
        out += message.output.data
        last = message
    assert out == b"b\n"
    assert last.exited.exit_code == 3


async def test_every_exec_has_one_terminal_frame_open_sandbox_1277(raw: Raw) -> None:
    command = ["sh", "-c", "i=0; while [ $i -lt 200 ]; do echo '{\"k\": 1}'; i=$((i+1)); done; exit 7"]
    ends = await asyncio.gather(*(raw.exec(exec_id=f"e{n}", command=command) for n in range(30)))
    assert {(end[2].exit_code, len(end[0])) for end in ends} == {(7, 200 * 9)}


async def test_signal_reaches_the_command(raw: Raw) -> None:
    running = asyncio.create_task(
        raw.exec(exec_id="s", command=["sh", "-c", "trap 'exit 9' USR1; while :; do sleep 0.05; done"])
    )
    await asyncio.sleep(0.3)
    await raw.stub.Signal(agent_pb2.SignalRequest(exec_id="s", signal=10), metadata=raw.metadata)
    assert (await running)[2].exit_code == 9
    with pytest.raises(NotFound):
        await raw.stub.Signal(agent_pb2.SignalRequest(exec_id="never", signal=10), metadata=raw.metadata)


async def test_kill_all_leaves_the_sandbox_usable(agent_world: World) -> None:
    agent = await agent_world.sandbox()
    await agent.exec(["sh", "-c", "for i in 1 2 3; do setsid sleep 300 & done"], timeout_s=10)
    running = asyncio.create_task(agent.exec(["sleep", "300"], timeout_s=30))
    await asyncio.sleep(0.2)
    assert await agent.kill_all() >= 4
    assert (await running).signal == 9
    assert "sleep 300" not in await _processes(agent)


async def test_kill_minus_one_by_the_agent_does_not_end_the_sandbox(agent_world: World) -> None:
    agent = await agent_world.sandbox()
    result = await agent.exec(["sh", "-c", "kill -9 1; kill -9 -1; sleep 1; exec true"], timeout_s=10)
    assert result.timed_out is False
    assert (await agent.exec(["echo", "alive"], timeout_s=10)).stdout.head == b"alive\n"


async def test_fork_bomb_is_bounded(agent_world: World) -> None:
    agent = await agent_world.sandbox(max_processes=64)
    began = time.monotonic()
    result = await agent.exec(["bash", "-c", "b() { b | b & }; b; sleep 20"], timeout_s=1.0)
    assert result.timed_out or result.exit_code != 0
    await agent.kill_all()
    assert time.monotonic() - began < 15
    assert (await agent.exec(["echo", "ok"], timeout_s=10)).stdout.head == b"ok\n"


@pytest.mark.smoke
async def test_memory_hog_is_killed_and_reported_centaur_1454(agent_world: World) -> None:
    claimed = await agent_world.claim(limits={"memory_mb": 48})
    agent = agent_world.agent(claimed)
    result = await agent.exec(["sh", "-c", "tail -c 400m /dev/zero | tail"], timeout_s=30)
    assert result.status != 0
    if claimed.sandbox.enforcement.by_limit["memory"] == "cgroup":
        assert result.oom_killed
    after = await agent.exec(["echo", "ok"], timeout_s=10)
    assert (after.stdout.head, after.oom_killed) == (b"ok\n", False)


async def test_huge_file_is_stopped(agent_world: World) -> None:
    agent = await agent_world.sandbox(max_file_mb=16)
    result = await agent.exec(["dd", "if=/dev/zero", "of=/app/big", "bs=1M", "count=1024"], timeout_s=30)
    assert result.status != 0
    assert (await agent.stat("/app/big")).size <= 16 * 1024 * 1024


async def test_network_is_unreachable(agent_world: World) -> None:
    agent = await agent_world.sandbox()
    command = "exec 3<>/dev/tcp/10.0.0.1/80"
    assert (await agent.exec(["bash", "-c", command], timeout_s=10)).exit_code != 0
    host, port = agent_world.settings.catalog_address.split(":")
    own = await agent.exec(["bash", "-c", f"exec 3<>/dev/tcp/{host}/{port}"], timeout_s=10)
    assert own.exit_code != 0, "a service on the host's loopback is reachable"


async def test_host_files_are_unreachable(agent_world: World, tmp_path: Path) -> None:
    (tmp_path / "host-secret").write_text("host")
    agent = await agent_world.sandbox()
    script = f"cat {tmp_path}/host-secret; ls {os.getcwd()}; cat /etc/shadow; ls /proc/1/root/; ls -d /home/*"
    result = await agent.exec(["sh", "-c", script], timeout_s=10)
    assert result.stdout.head == b""
    seen = (
        await agent.exec(["sh", "-c", "cat /proc/*/cmdline /proc/self/mountinfo | tr '\\0' ' '"], timeout_s=10)
    ).stdout
    assert os.getcwd().encode() not in seen.head
    assert str(tmp_path).encode() not in seen.head


async def test_sandboxes_do_not_see_each_other(agent_world: World) -> None:
    one, two = await agent_world.sandbox(), await agent_world.sandbox()
    await one.exec(["sh", "-c", "echo x > /app/mine; sleep 222 &"], timeout_s=10)
    assert not (await two.stat("/app/mine")).exists
    assert "sleep 222" not in await _processes(two)


@pytest.mark.smoke
async def test_upload_download_file(agent_world: World) -> None:
    agent = await agent_world.sandbox()
    data = bytes(range(256)) * 5000
    await agent.upload("/new/folder/file", data, mode=0o750)
    assert await agent.download("/new/folder/file", max_bytes=len(data)) == data
    stat = await agent.stat("/new/folder/file")
    assert (stat.kind, stat.size, stat.mode) == ("file", len(data), 0o750)
    with pytest.raises(QuotaExceeded):
        await agent.download("/new/folder/file", max_bytes=len(data) - 1)
    with pytest.raises(NotFound):
        await agent.download("/absent", max_bytes=10)
    with pytest.raises(InvalidSpec):
        await agent.download("/dev/zero", max_bytes=10)
    with pytest.raises(InvalidSpec):
        await agent.upload("relative", b"")
    with pytest.raises(InvalidSpec):
        await agent.upload("/app/../etc/x", b"")


async def test_wrong_digest_changes_nothing(raw: Raw) -> None:
    async def parts(digest: str) -> AsyncIterator[agent_pb2.UploadRequest]:
        yield agent_pb2.UploadRequest(header=agent_pb2.UploadHeader(path="/app/f", digest=digest))
        yield agent_pb2.UploadRequest(data=b"content")

    with pytest.raises(InvalidSpec, match="digest"):
        await mapped(raw.stub.Upload(parts(digest_bytes(b"other")), metadata=raw.metadata))
    stat = await raw.stub.Stat(agent_pb2.StatRequest(path="/app/f"), metadata=raw.metadata)
    assert not stat.exists
    assert (await mapped(raw.stub.Upload(parts(digest_bytes(b"content")), metadata=raw.metadata))).bytes == 7


async def test_concurrent_uploads_are_all_whole_inspect_k8s_225(agent_world: World) -> None:
    agent = await agent_world.sandbox()
    datas = [os.urandom(1024) for _ in range(200)]
    await asyncio.gather(*(agent.upload(f"/app/{number}", data) for number, data in enumerate(datas)))
    listing = await agent.exec(["sh", "-c", "sha256sum $(seq 0 199) | cut -d' ' -f1"], timeout_s=20)
    assert listing.stdout.head.split() == [digest_bytes(data).removeprefix("sha256:").encode() for data in datas]


def _tar(*entries: tuple[str, Any]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in entries:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size, info.mode = len(content), 0o755 if name.endswith(".sh") else 0o644
                tar.addfile(info, io.BytesIO(content))
            else:
                info.type, info.linkname = content
                tar.addfile(info)
    return buffer.getvalue()


async def test_tar_up_and_down(agent_world: World) -> None:
    agent = await agent_world.sandbox()
    await agent.exec(["sh", "-c", "mkdir /tests; echo planted > /tests/planted"], timeout_s=10)
    data = _tar(("test.sh", b"#!/bin/sh\necho ran\n"), ("sub/a", b"A"), ("link", (tarfile.SYMTYPE, "sub/a")))
    await agent.upload("/tests", data, tar=True)
    assert (await agent.stat("/tests/planted")).exists, "without replace the rest stays"
    await agent.upload("/tests", data, tar=True, replace=True)
    assert not (await agent.stat("/tests/planted")).exists
    assert (await agent.exec(["/tests/test.sh"], timeout_s=10)).stdout.head == b"ran\n"
    with tarfile.open(fileobj=io.BytesIO(await agent.download("/tests", max_bytes=1 << 20, tar=True))) as back:
        assert sorted(back.getnames()) == ["link", "sub", "sub/a", "test.sh"]
        assert back.getmember("link").linkname == "sub/a"


async def test_tar_replaces_a_folder_of_the_image(agent_world: World) -> None:
    agent = await agent_world.sandbox()
    await agent.upload("/logs", _tar(("only", b"1")), tar=True, replace=True)
    assert (await agent.exec(["ls", "/logs"], timeout_s=10)).stdout.head == b"only\n"


@pytest.mark.parametrize(
    "entries",
    [
        [("../evil", b"x")],
        [("/etc/evil", b"x")],
        [("ok", b"x"), ("out", (tarfile.SYMTYPE, "../../etc/passwd"))],
        [("abs", (tarfile.SYMTYPE, "/etc/passwd"))],
        [("dir", (tarfile.SYMTYPE, "sub")), ("dir/x", b"x")],
        [("a", (tarfile.SYMTYPE, ".")), ("a/x", (tarfile.SYMTYPE, "../evil")), ("x/f", b"x")],
        [("a/b/l", (tarfile.SYMTYPE, "../..")), ("x", (tarfile.SYMTYPE, "a/b/l/.."))],
        [("dev", (tarfile.CHRTYPE, ""))],
        [("fifo", (tarfile.FIFOTYPE, ""))],
        [("hard", (tarfile.LNKTYPE, "/etc/passwd"))],
    ],
)
async def test_tar_escapes_are_refused_before_anything_changes(agent_world: World, entries: list[Any]) -> None:
    agent = await agent_world.sandbox()
    with pytest.raises(InvalidSpec):
        await agent.upload("/app", _tar(("first", b"1"), *entries), tar=True)
    assert (await agent.exec(["sh", "-c", "ls -A /app; ls -A / | grep longshore-"], timeout_s=10)).stdout.head == b""


async def test_planted_links_are_not_followed(agent_world: World) -> None:
    agent = await agent_world.sandbox()
    await agent.exec(["sh", "-c", "ln -s /etc /app/sub; ln -s /etc /tests; ln -s /etc/passwd /app/file"], timeout_s=10)
    with pytest.raises(InvalidSpec, match="no folder"):
        await agent.upload("/app", _tar(("sub/x", b"x")), tar=True)
    with pytest.raises(InvalidSpec, match="link"):
        await agent.upload("/tests", _tar(("x", b"x")), tar=True)
    await agent.upload("/tests", _tar(("x", b"x")), tar=True, replace=True)
    await agent.upload("/app/file", b"mine")
    result = await agent.exec(
        ["sh", "-c", "ls -d /tests/x; test -e /etc/x && echo BAD; head -c4 /etc/passwd"], timeout_s=10
    )
    assert result.stdout.head == b"/tests/x\nroot"
    assert (await agent.stat("/tests")).kind == "dir"


async def test_links_lead_only_inside_the_sandbox(agent_world: World, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host")
    agent = await agent_world.sandbox()
    up = "../" * 20
    await agent.exec(
        ["sh", "-c", f"ln -s {secret} /app/a; ln -s {up}{secret} /app/b; ln -s /proc/1/root /app/c"], timeout_s=10
    )
    for path in ("/app/a", "/app/b"):
        with pytest.raises(NotFound):
            await agent.download(path, max_bytes=100)
    with pytest.raises((NotFound, InvalidSpec)):
        await agent.download(f"/app/c{secret}", max_bytes=100)
    assert (await agent.download("/etc/hostname", max_bytes=100)).strip() == b"sandbox"


async def test_stat_and_remove(agent_world: World) -> None:
    agent = await agent_world.sandbox()
    await agent.exec(["sh", "-c", "mkdir -p d/e; touch d/e/f; ln -s /etc l"], timeout_s=10)
    assert [(await agent.stat(f"/app/{name}")).kind for name in ("d", "l", "d/e/f")] == ["dir", "symlink", "file"]
    await agent.remove(["/app/d", "/app/l", "/app/absent", "/bin/bash"])
    assert (await agent.exec(["sh", "-c", "ls -A /app; ls /bin/bash"], timeout_s=10)).stdout.head == b""
    assert (await agent.stat("/etc/passwd")).exists
    with pytest.raises(InvalidSpec):
        await agent.remove(["/"])


@pytest.mark.smoke
async def test_token_is_checked(agent_world: World) -> None:
    claimed, other = await agent_world.claim(), await agent_world.claim()
    for token in ("", "x", claimed.agent_token[:-1], f"{claimed.sandbox.sandbox_id}.{other.agent_token.split('.')[1]}"):
        with pytest.raises(PermissionDenied):
            await agent_world.channels.client(claimed.agent_address, token).stat("/")
    stub = Raw(claimed.agent_address, claimed.agent_token)
    health = await stub.stub.Health(agent_pb2.HealthRequest(), metadata=stub.metadata)
    assert (health.sandbox_id, health.runtime) == (claimed.sandbox.sandbox_id, claimed.sandbox.runtime)
    await stub.channel.close()
    await agent_world.delete(claimed.sandbox.sandbox_id)
    # An agent inside the sandbox goes with it, within a pod's grace; one that the scheduler hosts refuses at once.
    with pytest.raises((PermissionDenied, Unavailable)):
        for _ in range(100):
            await agent_world.agent(claimed).stat("/")
            await asyncio.sleep(0.1)
