"""Picks the concrete adapters of an engine host: vLLM children, the mounted volume, Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import grpc.aio

from longshore.engine.v1 import engine_pb2, engine_pb2_grpc
from longshore_common.app import App, GrpcEndpoint
from longshore_common.clock import SystemClock
from longshore_common.errors import InvalidSpec
from longshore_inference_gateway.clients.local_engine import free_port
from longshore_inference_gateway.clients.vllm import api_key_of
from longshore_inference_gateway.clients.vllm_process import PROGRAM, Placement, VllmProcesses
from longshore_inference_gateway.engine_host import metrics
from longshore_inference_gateway.engine_host.host import EngineHost
from longshore_inference_gateway.engine_host.servicer import SERVICE, EngineHostServicer
from longshore_inference_gateway.engine_host.settings import Settings
from longshore_inference_gateway.engine_host.volume import SharedVolume

NAME = "engine-host"


async def build(settings: Settings, program: Sequence[str] = PROGRAM) -> App:
    """The app. program: what is started as vLLM; see vllm_process.PROGRAM.

    Raises:
        InvalidSpec: http_address is no host:port.
    """
    clock = SystemClock()
    secret = settings.secret.get_secret_value()
    placement = Placement(settings.data_dir.absolute(), api_key=api_key_of(secret), program=program)
    processes = VllmProcesses(settings, placement, clock)
    address, port = _listen_at(settings.http_address)
    host = EngineHost(
        processes,
        SharedVolume(),
        clock,
        host=address,
        port=port or await asyncio.to_thread(free_port, address),
        prestart=settings.engine_prestart,
        on_state=metrics.changed,
    )
    metrics.show(host.status.state)
    servicer = EngineHostServicer(host, _limits(settings), clock, base_apart=processes.base_apart)
    return App(
        name=NAME,
        grpc=[GrpcEndpoint(settings.grpc_address, (SERVICE,), _registration(servicer), secret or None)],
        on_start=host.prepare,
        on_stop=host.close,
    )


def _registration(servicer: EngineHostServicer) -> Callable[[grpc.aio.Server], None]:
    return lambda server: engine_pb2_grpc.add_EngineHostServiceServicer_to_server(servicer, server)


def _limits(settings: Settings) -> engine_pb2.EngineLimits:
    return engine_pb2.EngineLimits(
        max_adapters=settings.engine_max_cpu_loras,
        max_lora_rank=settings.engine_max_lora_rank,
        max_num_seqs=settings.engine_max_num_seqs,
    )


def _listen_at(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InvalidSpec(f"http_address {address!r} is not host:port, e.g. 0.0.0.0:8000", field="http_address")
    return host, int(port)
