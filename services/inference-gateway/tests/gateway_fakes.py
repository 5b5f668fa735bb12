"""Stand-ins for other services: an in-memory trajectory store, and an engine that can be told to fail."""

import asyncio
import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
from aiohttp import web

from longshore.trajectory.v1 import trajectory_pb2 as pb
from longshore.trajectory.v1 import trajectory_pb2_grpc
from longshore_common.errors import Conflict, NotFound, Unavailable


class FakeTrajectory(trajectory_pb2_grpc.TrajectoryServiceServicer):
    """Keeps turns in memory with the store's rules: keyed, same content a no-op, older epochs refused."""

    def __init__(self) -> None:
        self.turns: dict[tuple[str, int, int], pb.Turn] = {}
        self.epochs: dict[str, int] = {}
        self.fail_next = 0
        self.before_append: Any = None

    async def AppendTurn(self, request: pb.AppendTurnRequest, context: Any) -> pb.AppendTurnResponse:
        if self.before_append is not None:
            await self.before_append()
        if self.fail_next:
            self.fail_next -= 1
            raise Unavailable("the fake store was told to fail")
        turn = request.turn
        if turn.lease_epoch < self.epochs.get(turn.attempt_id, 0):
            raise Conflict(f"epoch {turn.lease_epoch} is over")
        key = (turn.attempt_id, turn.lease_epoch, turn.turn)
        if key in self.turns and self.turns[key] != turn:
            raise Conflict(f"turn {key} has other content")
        self.turns[key] = turn
        return pb.AppendTurnResponse(sequence=len(self.turns))

    async def GetAttempt(self, request: pb.GetAttemptRequest, context: Any) -> pb.GetAttemptResponse:
        found = [turn for key, turn in sorted(self.turns.items()) if key[0] == request.attempt_id]
        if not found:
            raise NotFound(f"no attempt {request.attempt_id}")
        return pb.GetAttemptResponse(turns=found)

    def of(self, attempt_id: str, epoch: int = 1) -> list[pb.Turn]:
        return [turn for key, turn in sorted(self.turns.items()) if key[:2] == (attempt_id, epoch)]

    def register(self, server: grpc.aio.Server) -> None:
        trajectory_pb2_grpc.add_TrajectoryServiceServicer_to_server(self, server)


@dataclass
class FakeEngine:
    """vLLM's routes with scripted answers; `answers` are ids, the last one repeats."""

    base_name: str
    answers: list[list[int]] = field(default_factory=lambda: [[10, 11, 1]])
    context_length: int = 512
    loaded: set[str] = field(default_factory=set)
    loads: list[str] = field(default_factory=list)
    unloads: list[str] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    fail_load: bool = False
    fail_generate: str = ""
    """"status": 500; "die": the connection breaks; "half": the stream breaks after one token."""
    health_delay_s: float = 0.0
    delay_s: float = 0.0
    hold: asyncio.Event | None = None
    drop_logprobs: int = 0
    spans: list[dict[str, Any]] | None = None
    serve_as: str | None = None
    finish_reason: str | None = None
    address: str = ""
    aborted: int = 0

    def __post_init__(self) -> None:
        self._count = itertools.count()
        self._runner: web.AppRunner | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0, middlewares: Any = ()) -> "FakeEngine":
        app = web.Application(middlewares=middlewares)
        app.router.add_post("/inference/v1/generate", self._generate)
        app.router.add_post("/v1/load_lora_adapter", self._load)
        app.router.add_post("/v1/unload_lora_adapter", self._unload)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        self._runner = web.AppRunner(app, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        self.address = f"127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        await asyncio.sleep(self.health_delay_s)
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        names = [self.base_name, *sorted(self.loaded)]
        return web.json_response({"data": [{"id": name, "max_model_len": self.context_length} for name in names]})

    async def _load(self, request: web.Request) -> web.Response:
        body = await request.json()
        name = body["lora_name"]
        self.loads.append(name)
        if not Path(body["lora_path"]).is_dir():
            return web.json_response({"error": {"message": f"No adapter found for {body['lora_path']}"}}, status=404)
        if self.fail_load:
            return web.json_response({"error": {"message": "no room for the adapter"}}, status=500)
        self.loaded.add(name)
        return web.Response()

    async def _unload(self, request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        self.unloads.append(name)
        if name not in self.loaded:
            return web.json_response({"error": {"message": "not found"}}, status=404)
        self.loaded.discard(name)
        return web.Response()

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        if body["model"] not in {self.base_name, *self.loaded}:
            return web.json_response({"error": {"message": "model does not exist"}}, status=404)
        try:
            if self.hold is not None:
                await self.hold.wait()
            await asyncio.sleep(self.delay_s)
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        if self.fail_generate == "status":
            return web.json_response({"error": {"message": "engine core died"}}, status=500)
        if self.fail_generate == "die":
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        ids = self.answers[min(next(self._count), len(self.answers) - 1)][: body["sampling_params"]["max_tokens"]]
        if body.get("stream"):
            return await self._stream(request, body, ids)
        return web.json_response(self._answer(body, ids, 0, last=True) | {"model": self.serve_as or body["model"]})

    def _answer(self, body: dict[str, Any], ids: list[int], first: int, last: bool) -> dict[str, Any]:
        content = [{"token_id": token, "logprob": -0.5 - 0.01 * (first + i)} for i, token in enumerate(ids)]
        content = content[: len(content) - self.drop_logprobs] if self.drop_logprobs else content
        stop = self.finish_reason or (
            "stop" if ids and ids[-1] in body["sampling_params"]["stop_token_ids"] else "length"
        )
        spans = self.spans or [{"version": "default", "start": 0, "end": first + len(ids)}]
        choice = {
            "index": 0,
            "token_ids": ids,
            "logprobs": {"content": content},
            "finish_reason": stop if last else None,
            "weight_versions": spans if last else None,
        }
        return {"choices": [choice]}

    async def _stream(self, request: web.Request, body: dict[str, Any], ids: list[int]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for index, token in enumerate(ids):
            piece = self._answer(body, [token], index, last=index == len(ids) - 1)
            await response.write(b"data: " + json.dumps(piece).encode() + b"\n\n")
            if self.fail_generate == "half":
                assert request.transport is not None
                request.transport.close()
                return response
        usage = {"choices": [], "usage": {"prompt_tokens": len(body["token_ids"]), "completion_tokens": len(ids)}}
        await response.write(b"data: " + json.dumps(usage).encode() + b"\n\ndata: [DONE]\n\n")
        return response
