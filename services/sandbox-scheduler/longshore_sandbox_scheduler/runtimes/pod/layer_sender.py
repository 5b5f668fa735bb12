"""Puts a layer into a pod through its agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from longshore.agent.v1 import agent_pb2
from longshore_common.agent_client import AgentChannels
from longshore_common.grpc_client import mapped

_CHUNK_BYTES = 1024 * 1024
_TIMEOUT_S = 30.0
_SLOWEST_BYTES_PER_S = 1024 * 1024
"""An upload slower than this beyond its first time is given up."""


class LayerSender:
    """At most `concurrent` at a time: each holds a chunk and a stream, and all of them share this process's network.

    mint: makes a token for a sandbox and an instance.
    """

    def __init__(self, channels: AgentChannels, mint: Callable[[str, str], str], concurrent: int) -> None:
        self._channels = channels
        self._mint = mint
        self._slots = asyncio.Semaphore(concurrent)

    async def send(self, address: str, sandbox_id: str, instance: str, layer: str, tar: bytes) -> None:
        """Unpacks the tar of digest `layer` over the sandbox's root; nothing changes when the agent refuses it.

        Raises:
            LongshoreError: what the agent raised.
        """
        timeout_s = _TIMEOUT_S + len(tar) / _SLOWEST_BYTES_PER_S
        metadata = (("authorization", f"Bearer {self._mint(sandbox_id, instance)}"),)
        async with self._slots:
            call = self._channels.stub(address).Upload(_parts(layer, tar), metadata=metadata, timeout=timeout_s)
            await mapped(call)

    async def tidy(self) -> None:
        """Closes channels beyond their bound: every pod has an address of its own. Call it now and then."""
        await self._channels.trim()

    async def close(self) -> None:
        """Closes all channels."""
        await self._channels.close()


async def _parts(layer: str, tar: bytes) -> AsyncIterator[agent_pb2.UploadRequest]:
    yield agent_pb2.UploadRequest(header=agent_pb2.UploadHeader(path="/", digest=layer, tar=True))
    view = memoryview(tar)
    for start in range(0, len(tar), _CHUNK_BYTES):
        yield agent_pb2.UploadRequest(data=bytes(view[start : start + _CHUNK_BYTES]))
