"""The agent client against a scripted agent: broken streams, gaps, digests."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from longshore.agent.v1 import agent_pb2, agent_pb2_grpc
from longshore_common.agent_client import AgentChannels, AgentClient
from longshore_common.app import App, GrpcEndpoint, running
from longshore_common.digests import digest_bytes
from longshore_common.errors import InvalidSpec, Unavailable
from longshore_common.sandbox_exec import Captured

OUT, ERR = agent_pb2.STREAM_STDOUT, agent_pb2.STREAM_STDERR


def output(stream: Any, offset: int, data: bytes) -> agent_pb2.ExecResponse:
    return agent_pb2.ExecResponse(output=agent_pb2.Output(stream=stream, offset=offset, data=data))


def exited(**fields: Any) -> agent_pb2.ExecResponse:
    return agent_pb2.ExecResponse(exited=agent_pb2.Exited(**fields))


class FakeAgent(agent_pb2_grpc.AgentServiceServicer):
    """Plays one list of answers per Exec call; an exception in it is raised."""

    def __init__(self) -> None:
        self.plays: list[list[Any]] = []
        self.requests: list[agent_pb2.ExecRequest] = []
        self.tokens: list[str] = []
        self.uploads: list[Any] = []
        self.download: list[Any] = []

    async def Exec(self, request: Any, context: Any) -> AsyncIterator[agent_pb2.ExecResponse]:
        self.requests.append(agent_pb2.ExecRequest.FromString(request.SerializeToString()))
        self.tokens.append(dict(context.invocation_metadata())["authorization"])
        for step in self.plays.pop(0):
            if isinstance(step, Exception):
                raise step
            yield step

    async def Upload(self, requests: Any, context: Any) -> agent_pb2.UploadResponse:
        self.uploads = [each async for each in requests]
        return agent_pb2.UploadResponse(bytes=sum(len(each.data) for each in self.uploads))

    async def Download(self, request: Any, context: Any) -> AsyncIterator[agent_pb2.DownloadResponse]:
        for each in self.download:
            yield each


@pytest.fixture
async def agent() -> AsyncIterator[tuple[FakeAgent, AgentClient]]:
    fake, channels = FakeAgent(), AgentChannels()

    def register(server: Any) -> None:
        agent_pb2_grpc.add_AgentServiceServicer_to_server(fake, server)

    async with running(App("fake", [GrpcEndpoint("127.0.0.1:0", (), register, None)])) as handle:
        yield fake, channels.client(handle.grpc_addresses[0], "sandbox-token")
        await channels.close()


async def test_output_is_gathered_per_stream(agent: tuple[FakeAgent, AgentClient]) -> None:
    fake, client = agent
    end = exited(exit_code=3, stdout_bytes=4, stderr_bytes=1, duration_s=0.5)
    fake.plays = [[output(OUT, 0, b"ab"), output(ERR, 0, b"e"), output(OUT, 2, b"cd"), end]]
    result = await client.exec(["x"], timeout_s=5)
    assert (result.status, result.stdout.joined(), result.stderr.joined()) == (3, b"abcd", b"e")
    assert fake.tokens == ["Bearer sandbox-token"]


async def test_a_gap_separates_head_and_tail(agent: tuple[FakeAgent, AgentClient]) -> None:
    fake, client = agent
    fake.plays = [[output(OUT, 0, b"head"), output(OUT, 96, b"tail"), exited(stdout_bytes=100, stdout_truncated=True)]]
    result = await client.exec(["x"], timeout_s=5)
    assert result.stdout == Captured(b"head", b"tail", 100)
    assert result.stdout.joined() == b"head\n[... 92 bytes left out ...]\ntail"


async def test_a_broken_stream_is_attached_again_and_never_run_twice(agent: tuple[FakeAgent, AgentClient]) -> None:
    """kubernetes#137404: a command that was cut off after 5 s was taken for exit 0."""
    fake, client = agent
    fake.plays = [
        [output(OUT, 0, b"abc"), Unavailable("cut")],
        [output(OUT, 1, b"bcd")],
        [exited(exit_code=3, stdout_bytes=4)],
    ]
    result = await client.exec(["x"], timeout_s=5)
    assert (result.exit_code, result.stdout.joined()) == (3, b"abcd")
    assert len({request.exec_id for request in fake.requests}) == 1
    assert [request.stdout_offset for request in fake.requests] == [0, 3, 4]


async def test_a_stream_without_an_exit_status_is_an_error(agent: tuple[FakeAgent, AgentClient]) -> None:
    """cloudflare/sandbox-sdk#873: a closed stream became `complete 0`."""
    fake, client = agent
    fake.plays = [[output(OUT, 0, b"a")], [], []]
    with pytest.raises(Unavailable, match="without an exit status"):
        await client.exec(["x"], timeout_s=5)


async def test_a_refusal_is_not_tried_again(agent: tuple[FakeAgent, AgentClient]) -> None:
    fake, client = agent
    fake.plays = [[InvalidSpec("no such user", field="user")]]
    with pytest.raises(InvalidSpec, match="no such user"):
        await client.exec(["x"], timeout_s=5)
    assert len(fake.requests) == 1


async def test_a_killed_command_has_the_shells_status(agent: tuple[FakeAgent, AgentClient]) -> None:
    fake, client = agent
    fake.plays = [[exited(exit_code=-1, signal=9, timed_out=True)]]
    assert (await client.exec(["x"], timeout_s=5)).status == 137


async def test_an_upload_names_its_digest(agent: tuple[FakeAgent, AgentClient]) -> None:
    fake, client = agent
    data = bytes(range(256)) * 8192
    await client.upload("/app/x", data, mode=0o755)
    header = fake.uploads[0].header
    assert (header.path, header.digest, header.mode) == ("/app/x", digest_bytes(data), 0o755)
    assert b"".join(each.data for each in fake.uploads[1:]) == data


async def test_a_download_is_checked(agent: tuple[FakeAgent, AgentClient]) -> None:
    fake, client = agent
    parts = [agent_pb2.DownloadResponse(data=b"ab"), agent_pb2.DownloadResponse(data=b"c")]
    fake.download = [*parts, agent_pb2.DownloadResponse(digest=digest_bytes(b"abc"))]
    assert await client.download("/x", max_bytes=10) == b"abc"
    fake.download = parts
    with pytest.raises(Unavailable, match="broke off"):
        await client.download("/x", max_bytes=10)


async def test_files_are_streamed_with_progress(agent: tuple[FakeAgent, AgentClient], tmp_path: Path) -> None:
    fake, client = agent
    data = bytes(range(256)) * 10_000
    path = tmp_path / "file"
    path.write_bytes(data)
    seen: list[int] = []
    with path.open("rb") as file:
        assert await client.upload_from("/f", file, mode=0o700, progress=seen.append) == len(data)
    header, *parts = fake.uploads
    assert (header.header.digest, header.header.mode) == (digest_bytes(data), 0o700)
    assert b"".join(part.data for part in parts) == data
    assert seen == [1 << 20, 2 << 20, len(data)]


async def test_a_broken_download_is_told_from_a_whole_one(agent: tuple[FakeAgent, AgentClient], tmp_path: Path) -> None:
    fake, client = agent
    fake.download = [agent_pb2.DownloadResponse(data=b"half")]
    with (tmp_path / "f").open("wb") as file, pytest.raises(Unavailable, match="broke off after 4 bytes"):
        await client.download_to("/f", file, max_bytes=10)
    fake.download.append(agent_pb2.DownloadResponse(digest=digest_bytes(b"half")))
    with (tmp_path / "f").open("wb") as file:
        assert await client.download_to("/f", file, max_bytes=10) == 4
    assert (tmp_path / "f").read_bytes() == b"half"
