"""REST over the same application: JSON in and out, one shape of error, bearer authentication."""

from __future__ import annotations

import hmac
import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from longshore_common.errors import InvalidSpec, LongshoreError, NotFound, PermissionDenied
from longshore_common.http_status import to_body, to_http
from longshore_controller.api.servicer import Application
from longshore_controller.domain.records import AttemptCounts, EventRecord, RunRecord

_EVENT_STREAM = "text/event-stream"


def run_view(run: RunRecord, counts: AttemptCounts | None = None) -> dict[str, Any]:
    """A run as JSON: the plan as an object, attempts when they are known."""
    view = asdict(run)
    view["plan"] = json.loads(view.pop("plan_json"))
    view["attempts"] = asdict(counts) if counts is not None else None
    return view


def make_rest(application: Application, secret: str) -> FastAPI:
    """The ASGI application. An empty secret: callers are not checked."""
    rest = FastAPI(title="Longshore controller", version="1", docs_url="/docs", redoc_url=None)
    rest.include_router(_health())
    rest.include_router(_runs(application), dependencies=[Depends(_bearer(secret))])
    rest.add_exception_handler(LongshoreError, _on_error)
    rest.add_exception_handler(RequestValidationError, _on_validation)
    rest.add_exception_handler(HTTPException, _on_http)
    return rest


def _bearer(secret: str) -> Any:
    expected = f"Bearer {secret}".encode()

    async def check(request: Request) -> None:
        given = request.headers.get("authorization", "").encode()
        if secret and not hmac.compare_digest(given, expected):
            raise PermissionDenied("wrong or missing bearer token; send the service secret (LONGSHORE_SECRET)")

    return check


def _health() -> APIRouter:
    router = APIRouter()

    @router.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    return router


def _runs(app: Application) -> APIRouter:
    router = APIRouter(prefix="/v1/runs", tags=["runs"])
    _add_writes(router, app)
    _add_reads(router, app)
    return router


def _add_writes(router: APIRouter, app: Application) -> None:
    @router.post("", status_code=201)
    async def submit(request: Request, response: Response, dry_run: bool = False) -> dict[str, Any]:
        """Body: a run spec, YAML or JSON. 201: created; 200: a dry run, or known by its Idempotency-Key."""
        text = await _text(request)
        run, created = await app.submission.submit(text, dry_run, request.headers.get("idempotency-key", ""))
        response.status_code = 201 if created else 200
        return {"run": run_view(run), "created": created, "dry_run": dry_run}

    @router.post("/{run}/stop")
    async def stop(run: str, reason: str = "") -> dict[str, Any]:
        return {"run": run_view(await app.manager.stop(run, reason))}

    @router.post("/{run}/resume")
    async def resume(run: str) -> dict[str, Any]:
        return {"run": run_view(await app.manager.resume(run))}


def _add_reads(router: APIRouter, app: Application) -> None:
    @router.get("")
    async def list_runs(page_size: int = 0, page_token: str = "") -> dict[str, Any]:
        runs, token = await app.queries.page(page_size, page_token)
        return {"runs": [run_view(run) for run in runs], "next_page_token": token}

    @router.get("/{run}")
    async def get(run: str) -> dict[str, Any]:
        return {"run": run_view(*await app.queries.get(run))}

    @router.get("/{run}/events")
    async def events(request: Request, run: str, after: int = 0, limit: int = 0, until_done: bool = True) -> Response:
        """A JSON list; with `Accept: text/event-stream` a stream that goes on until the run has ended."""
        if _EVENT_STREAM not in request.headers.get("accept", ""):
            return JSONResponse({"events": [asdict(event) for event in await app.queries.events(run, after, limit)]})
        await app.queries.events(run, after, 1)  # An unknown run must be a 404, not a broken stream.
        resumed = request.headers.get("last-event-id", "")
        start = int(resumed) if resumed.isdigit() else after
        stream = _sse(app.watcher.watch(run, start, until_done))
        return StreamingResponse(stream, media_type=_EVENT_STREAM, headers={"cache-control": "no-cache"})

    @router.get("/{run}/report")
    async def report(run: str) -> Response:
        return Response(await app.reports.report_json(run), media_type="application/json")


async def _sse(events: AsyncIterator[EventRecord]) -> AsyncIterator[str]:
    async for event in events:
        data = json.dumps(asdict(event), separators=(",", ":"))
        yield f"id: {event.sequence}\nevent: {event.kind.value}\ndata: {data}\n\n"


async def _text(request: Request) -> str:
    try:
        return (await request.body()).decode()
    except UnicodeDecodeError as error:
        raise InvalidSpec("the request body is not UTF-8; send a run spec as YAML or JSON", field="body") from error


async def _on_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, LongshoreError)
    return JSONResponse(to_body(error), status_code=to_http(error))


async def _on_validation(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    problems = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
    return await _on_error(request, InvalidSpec(f"{request.url.path}: {problems}", field="query"))


async def _on_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    known = NotFound(f"{request.method} {request.url.path}: {error.detail}; see /docs for what there is")
    return JSONResponse(to_body(known), status_code=error.status_code)
