"""Servers and channels: errors cross the wire as they were raised; secrets are checked; a port in use is said."""

import grpc.aio
import pytest

from longshore.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from longshore_common.app import App, GrpcEndpoint, running
from longshore_common.errors import Conflict, Internal, LongshoreError, PermissionDenied, Unavailable
from longshore_common.grpc_client import call_sync, mapped_stream, open_channel, sync_channel


class Servicer(gateway_pb2_grpc.GatewayServiceServicer):
    async def GetPolicy(self, request, context):
        if request.alias == "conflict":
            raise Conflict("held by another", details={"holder": "b"})
        if request.alias == "fault":
            raise ZeroDivisionError("division by zero")
        return gateway_pb2.GetPolicyResponse(policy=gateway_pb2.Policy(alias=request.alias))


def app(address: str = "127.0.0.1:0", secret: str | None = "s3cret") -> App:
    def register(server: grpc.aio.Server) -> None:
        gateway_pb2_grpc.add_GatewayServiceServicer_to_server(Servicer(), server)

    return App("test", [GrpcEndpoint(address, ("longshore.gateway.v1.GatewayService",), register, secret)])


async def get(address: str, alias: str, secret: str = "s3cret") -> gateway_pb2.GetPolicyResponse:
    async with open_channel(address, secret) as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        return await stub.GetPolicy(gateway_pb2.GetPolicyRequest(alias=alias))


async def test_answer_arrives():
    async with running(app()) as handle:
        assert (await get(handle.grpc_addresses[0], "a")).policy.alias == "a"


async def test_error_arrives_as_raised_with_its_details():
    async with running(app()) as handle:
        with pytest.raises(Conflict, match="held by another") as caught:
            await get(handle.grpc_addresses[0], "conflict")
    assert caught.value.details == {"holder": "b"}
    assert not caught.value.retryable


async def test_unhandled_error_is_internal_and_names_the_call():
    async with running(app()) as handle:
        with pytest.raises(Internal, match="GetPolicy: ZeroDivisionError"):
            await get(handle.grpc_addresses[0], "fault")


async def test_wrong_secret_is_refused():
    async with running(app()) as handle:
        with pytest.raises(PermissionDenied, match="LONGSHORE_SECRET"):
            await get(handle.grpc_addresses[0], "a", secret="guess")


async def test_port_in_use_is_one_clear_error():
    async with running(app()) as handle:
        with pytest.raises(Unavailable, match="the port is in use"):
            async with running(app(handle.grpc_addresses[0])):
                pass


async def test_nobody_listening_is_unavailable_and_retryable():
    with pytest.raises(Unavailable) as caught:
        await get("127.0.0.1:1", "a")
    assert caught.value.retryable


async def test_blocking_channel_raises_the_tree():
    import asyncio

    async with running(app()) as handle:
        address = handle.grpc_addresses[0]

        def call() -> LongshoreError | None:
            with sync_channel(address, "s3cret") as channel:
                stub = gateway_pb2_grpc.GatewayServiceStub(channel)
                try:
                    call_sync(stub.GetPolicy, gateway_pb2.GetPolicyRequest(alias="conflict"))
                except LongshoreError as error:
                    return error
            return None

        assert isinstance(await asyncio.to_thread(call), Conflict)


async def test_unimplemented_stream_is_mapped():
    from longshore.trajectory.v1 import trajectory_pb2, trajectory_pb2_grpc

    async with running(app()) as handle, open_channel(handle.grpc_addresses[0], "s3cret") as channel:
        stub = trajectory_pb2_grpc.TrajectoryServiceStub(channel)
        with pytest.raises(Internal, match="UNIMPLEMENTED"):
            async for _ in mapped_stream(stub.WatchSealed(trajectory_pb2.WatchSealedRequest())):
                pass


async def test_background_failure_is_reported():
    async def fail() -> None:
        raise RuntimeError("gone")

    async with running(App("test", [], background=[fail])) as handle:
        assert str(await handle.failed) == "gone"
