"""Layers on their way into pods: in chunks, bounded, without channels that stay."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest

from longshore.agent.v1 import agent_pb2, agent_pb2_grpc
from longshore_common.agent_client import AgentChannels
from longshore_common.errors import Unavailable
from longshore_sandbox_scheduler.runtimes.pod.layer_sender import LayerSender

MIB = 1024 * 1024


class Agents(agent_pb2_grpc.AgentServiceServicer):
    """All agents in one; keeps what came and how many came at a time."""

    def __init__(self) -> None:
        self.headers: list[agent_pb2.UploadHeader] = []
        self.digests: list[str] = []
        self.largest = 0
        self.now = 0
        self.most = 0

    async def Upload(self, requests: Any, context: Any) -> agent_pb2.UploadResponse:
        self.now += 1
        self.most = max(self.most, self.now)
        total = hashlib.sha256()
        async for request in requests:
            if request.HasField("header"):
                self.headers.append(request.header)
            else:
                self.largest = max(self.largest, len(request.data))
                total.update(request.data)
        self.digests.append("sha256:" + total.hexdigest())
        await asyncio.sleep(0.01)
        self.now -= 1
        return agent_pb2.UploadResponse()


@asynccontextmanager
async def served(agents: Agents, ports: int = 1) -> AsyncIterator[list[str]]:
    server = grpc.aio.server()
    agent_pb2_grpc.add_AgentServiceServicer_to_server(agents, server)
    found = [f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}" for _ in range(ports)]
    await server.start()
    try:
        yield found
    finally:
        await server.stop(None)


def tar_of(size: int) -> tuple[str, bytes]:
    data = b"t" * size
    return "sha256:" + hashlib.sha256(data).hexdigest(), data


async def test_a_layer_arrives_whole_in_chunks_with_its_digest() -> None:
    agents, channels = Agents(), AgentChannels()
    layer, tar = tar_of(3 * MIB + 5)
    async with served(agents) as (address,):
        await LayerSender(channels, lambda sandbox, instance: "token", 4).send(address, "s", "i", layer, tar)
        await channels.close()
    (header,) = agents.headers
    assert (header.path, header.tar, header.digest, header.replace) == ("/", True, layer, False)
    assert agents.digests == [layer]
    assert agents.largest == MIB


async def test_many_at_once_are_bounded_and_leave_no_more_channels_than_the_bound() -> None:
    agents, channels = Agents(), AgentChannels(max_channels=8)
    layer, tar = tar_of(2048)
    sender = LayerSender(channels, lambda sandbox, instance: "token", 6)
    async with served(agents, ports=40) as addresses:
        await asyncio.gather(*(sender.send(address, "s", "i", layer, tar) for address in addresses))
        await sender.tidy()
        assert len(channels._channels) == 8
        await sender.close()
    assert agents.digests == [layer] * 40
    assert agents.most <= 6
    assert not channels._channels


async def test_an_agent_that_is_away_is_unavailable() -> None:
    channels = AgentChannels()
    layer, tar = tar_of(10)
    with pytest.raises(Unavailable):
        await LayerSender(channels, lambda sandbox, instance: "token", 4).send("127.0.0.1:1", "s", "i", layer, tar)
    await channels.close()
