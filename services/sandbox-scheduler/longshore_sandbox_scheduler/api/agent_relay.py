"""Passes a call on to the agent inside a sandbox, for callers that cannot reach it themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from longshore.agent.v1 import agent_pb2
from longshore_common.agent_client import AgentChannels
from longshore_common.grpc_client import mapped, mapped_stream


class AgentRelay:
    """One call's way to a sandbox's own agent; messages pass unchanged, errors as the agent raised them."""

    def __init__(self, channels: AgentChannels, address: str, authorization: str) -> None:
        self._stub = channels.stub(address)
        self._metadata = (("authorization", authorization),)

    def _options(self, context: Any) -> dict[str, Any]:
        return {"metadata": self._metadata, "timeout": context.time_remaining()}

    async def exec(self, request: agent_pb2.ExecRequest, context: Any) -> AsyncIterator[agent_pb2.ExecResponse]:
        async for message in mapped_stream(self._stub.Exec(request, **self._options(context))):
            yield message

    async def download(
        self, request: agent_pb2.DownloadRequest, context: Any
    ) -> AsyncIterator[agent_pb2.DownloadResponse]:
        async for message in mapped_stream(self._stub.Download(request, **self._options(context))):
            yield message

    async def upload(self, requests: AsyncIterator[agent_pb2.UploadRequest], context: Any) -> Any:
        return await mapped(self._stub.Upload(requests, **self._options(context)))

    async def unary(self, method: str, request: Any, context: Any) -> Any:
        """One of the calls with one request and one answer, by its name."""
        return await mapped(getattr(self._stub, method)(request, **self._options(context)))
