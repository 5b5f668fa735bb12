"""A command read while it runs, against a scripted agent: cut connections, gaps, stdin that comes too early."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from longshore.agent.v1 import agent_pb2, agent_pb2_grpc
from longshore_common.agent_client import AgentChannels, AgentClient
from longshore_common.agent_session import ExecSession, OutputPiece
from longshore_common.app import App, GrpcEndpoint, running
from longshore_common.errors import Conflict, InvalidSpec, NotFound, Unavailable

OUT, ERR = agent_pb2.STREAM_STDOUT, agent_pb2.STREAM_STDERR


def output(stream: Any, offset: int, data: bytes) -> agent_pb2.ExecResponse:
    return agent_pb2.ExecResponse(output=agent_pb2.Output(stream=stream, offset=offset, data=data))


def exited(**fields: Any) -> agent_pb2.ExecResponse:
    return agent_pb2.ExecResponse(exited=agent_pb2.Exited(**fields))


class FakeAgent(agent_pb2_grpc.AgentServiceServicer):
    """Plays one list of answers per Exec call; an exception in it is raised."""

    def __init__(self) -> None:
        self.plays: list[list[Any]] = []
        self.offsets: list[tuple[int, int]] = []
        self.ids: set[str] = set()
        self.stdin: list[tuple[bytes, bool]] = []
        self.signals: list[int] = []
        self.unknown_for = 0

    async def Exec(self, request: Any, context: Any) -> AsyncIterator[agent_pb2.ExecResponse]:
        self.ids.add(request.exec_id)
        self.offsets.append((request.stdout_offset, request.stderr_offset))
        for step in self.plays.pop(0):
            if isinstance(step, Exception):
                raise step
            yield step

    def _known(self) -> None:
        self.unknown_for -= 1
        if self.unknown_for >= 0:
            raise NotFound("exec was never started in this sandbox")

    async def WriteStdin(self, request: Any, context: Any) -> agent_pb2.WriteStdinResponse:
        self._known()
        self.stdin.append((request.data, request.eof))
        return agent_pb2.WriteStdinResponse()

    async def Signal(self, request: Any, context: Any) -> agent_pb2.SignalResponse:
        self._known()
        if request.signal == 9:
            raise Conflict("exec has ended")
        self.signals.append(request.signal)
        return agent_pb2.SignalResponse()


@pytest.fixture
async def agent() -> AsyncIterator[tuple[FakeAgent, AgentClient]]:
    fake, channels = FakeAgent(), AgentChannels()

    def register(server: Any) -> None:
        agent_pb2_grpc.add_AgentServiceServicer_to_server(fake, server)

    async with running(App("fake", [GrpcEndpoint("127.0.0.1:0", (), register, None)])) as handle:
        yield fake, channels.client(handle.grpc_addresses[0], "sandbox-token")
        await channels.close()


async def pieces(session: ExecSession) -> list[OutputPiece]:
    return [piece async for piece in session.output()]


async def test_a_cut_connection_goes_on_where_it_broke_and_runs_nothing_twice(
    agent: tuple[FakeAgent, AgentClient],
) -> None:
    fake, client = agent
    fake.plays = [
        [output(OUT, 0, b"ab"), output(ERR, 0, b"e"), Unavailable("cut")],
        [output(OUT, 1, b"bc"), Unavailable("cut again")],
        [output(OUT, 3, b"d"), exited(exit_code=7, duration_s=0.5)],
    ]
    session = client.session(["x"], timeout_s=5)
    found = await pieces(session)
    assert [(piece.stderr, piece.data) for piece in found] == [
        (False, b"ab"),
        (True, b"e"),
        (False, b"c"),
        (False, b"d"),
    ]
    assert fake.offsets == [(0, 0), (2, 1), (3, 1)]
    assert fake.ids == {session.exec_id}
    assert (session.end.status, session.end.duration_s) == (7, 0.5)


async def test_left_out_bytes_are_counted_where_they_are_missing(agent: tuple[FakeAgent, AgentClient]) -> None:
    fake, client = agent
    fake.plays = [[output(OUT, 0, b"head"), output(OUT, 96, b"tail"), exited(stdout_bytes=100)]]
    found = await pieces(client.session(["x"], timeout_s=5))
    assert found == [OutputPiece(False, b"head", 0), OutputPiece(False, b"tail", 92)]


async def test_a_signal_is_a_status_above_128(agent: tuple[FakeAgent, AgentClient]) -> None:
    fake, client = agent
    fake.plays = [[exited(exit_code=-1, signal=9, oom_killed=True)]]
    session = client.session(["x"], timeout_s=5)
    assert await pieces(session) == []
    assert (session.end.status, session.end.signal, session.end.oom_killed) == (137, 9, True)


async def test_it_gives_up_after_some_tries_without_progress(agent: tuple[FakeAgent, AgentClient]) -> None:
    fake, client = agent
    fake.plays = [[] for _ in range(9)]
    with pytest.raises(Unavailable, match="without an exit status"):
        await pieces(client.session(["x"], timeout_s=5))
    assert len(fake.plays) == 4


async def test_what_cannot_start_is_not_tried_again(agent: tuple[FakeAgent, AgentClient]) -> None:
    fake, client = agent
    fake.plays = [[InvalidSpec("no user nobody9")], []]
    with pytest.raises(InvalidSpec, match="nobody9"):
        await pieces(client.session(["x"], timeout_s=5))
    assert len(fake.plays) == 1


async def test_stdin_and_signals_wait_until_the_agent_knows_the_command(agent: tuple[FakeAgent, AgentClient]) -> None:
    fake, client = agent
    session = client.session(["x"], timeout_s=5, stdin_open=True)
    fake.unknown_for = 3
    await session.write_stdin(b"in")
    await session.write_stdin(b"", eof=True)
    fake.unknown_for = 2
    await session.signal(2)
    assert (fake.stdin, fake.signals) == ([(b"in", False), (b"", True)], [2])
    with pytest.raises(Conflict):
        await session.signal(9)
