"""The API client against a server of the test's own: what is tried again, what never is, and how errors read."""

from __future__ import annotations

import asyncio
import itertools
import json
import pickle
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from longshore_common.errors import AlreadyExists, Conflict, InvalidSpec, NotFound, PermissionDenied, Unavailable
from longshore_sandbox_scheduler.runtimes.pod import kube_api
from longshore_sandbox_scheduler.runtimes.pod.kube_api import CALLS, Expired, KubeApi, KubeError, KubeOptions
from longshore_sandbox_scheduler.runtimes.pod.kube_errors import as_domain_error, from_status
from longshore_sandbox_scheduler.runtimes.pod.kube_objects import KubeObjects

Handler = Callable[[web.Request], Any]


def status(code: int, reason: str, message: str = "no", **details: Any) -> web.Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}
    return web.json_response(body, status=code)


async def hang(request: web.Request) -> None:
    """Until the client has gone."""
    while request.transport is not None and not request.transport.is_closing():
        await asyncio.sleep(0.02)


@asynccontextmanager
async def serving(handler: Handler, folder: Path, **options: Any) -> AsyncIterator[KubeApi]:
    """A server whose every path is `handler`, and a client of it by a kubeconfig."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    config = folder / "kubeconfig"
    config.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "t",
                "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t"}}],
                "clusters": [{"name": "t", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
                "users": [{"name": "t", "user": {"token": "the-token"}}],
            }
        )
    )
    api = await KubeApi.open(KubeOptions(kubeconfig=str(config), **options))
    try:
        yield api
    finally:
        await api.close()
        await runner.cleanup()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_api, "_FIRST_DELAY_S", 0.001)


def counted(verb: str, resource: str, code: str) -> float:
    return float(CALLS.labels(verb, resource, code)._value.get())


async def test_a_refusal_for_load_is_tried_again_whatever_the_verb(tmp_path: Path) -> None:
    seen: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.method)
        if len(seen) < 3:
            return status(429, "TooManyRequests", "too many")
        return web.json_response({"metadata": {"name": "a"}}, status=201)

    before = counted("create", "pods", "429"), counted("create", "pods", "201")
    async with serving(handler, tmp_path) as api:
        made = await api.create("pods", "ns", {})
    assert made["metadata"]["name"] == "a"
    assert seen == ["POST"] * 3
    assert (counted("create", "pods", "429"), counted("create", "pods", "201")) == (before[0] + 2, before[1] + 1)


async def test_a_connection_that_breaks_is_tried_again_only_for_what_may_act_twice(tmp_path: Path) -> None:
    """Whether a creation or a claim acted is unknown: to repeat it would be a second one."""
    seen: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.method)
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    async with serving(handler, tmp_path) as api:
        for call in (api.create("pods", "ns", {}), api.json_patch("pods", "ns", "a", []), api.get("pods", "ns", "a")):
            with pytest.raises(KubeError) as failed:
                await call
            assert failed.value.status == 0
            assert failed.value.retryable
            assert not failed.value.unsent
    assert (seen.count("POST"), seen.count("PATCH")) == (1, 1)
    assert seen.count("GET") >= 4


async def test_a_server_that_is_away_is_said_to_be_and_nothing_was_sent(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.Response:
        raise AssertionError

    async with serving(handler, tmp_path) as api:
        api._host = "http://127.0.0.1:9"
        with pytest.raises(KubeError, match="no answer") as failed:
            await api.create("pods", "ns", {})
    assert failed.value.unsent


async def test_a_server_that_hangs_is_given_up(tmp_path: Path) -> None:

    async def handler(request: web.Request) -> web.Response:
        await hang(request)
        return web.Response()

    async with serving(handler, tmp_path, timeout_s=0.2) as api:
        with pytest.raises(KubeError, match="no answer") as failed:
            await api.delete("pods", "ns", "a")
    assert failed.value.status == 0
    assert not failed.value.unsent


async def test_lists_come_by_pages_with_the_token(tmp_path: Path) -> None:
    asked: list[dict[str, str]] = []

    async def handler(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer the-token"
        asked.append(dict(request.query))
        at = int(request.query.get("continue") or 0)
        metadata = {"resourceVersion": "77", **({"continue": str(at + 1)} if at < 2 else {})}
        return web.json_response({"items": [{"metadata": {"name": f"p{at}"}}], "metadata": metadata})

    async with serving(handler, tmp_path) as api:
        page = await api.list("pods", "ns", "a=b", page=1)
    assert [item["metadata"]["name"] for item in page.items] == ["p0", "p1", "p2"]
    assert page.version == "77"
    assert [one["limit"] for one in asked] == ["1"] * 3
    assert {one["labelSelector"] for one in asked} == {"a=b"}


async def test_a_delete_of_what_is_gone_or_another_is_false(tmp_path: Path) -> None:
    bodies: list[Any] = []

    async def handler(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        return {"gone": status(404, "NotFound"), "other": status(409, "Conflict")}.get(
            request.path.rpartition("/")[2], web.json_response({})
        )

    async with serving(handler, tmp_path) as api:
        assert not await api.delete("pods", "ns", "gone")
        assert not await api.delete("pods", "ns", "other", uid="u", version="5", grace_s=1)
        assert await api.delete("pods", "ns", "there", grace_s=0)
    assert bodies[1]["preconditions"] == {"uid": "u", "resourceVersion": "5"}
    assert [body.get("gracePeriodSeconds") for body in bodies] == [None, 1, 0]


async def test_a_watch_takes_lines_in_any_pieces_and_of_any_length(tmp_path: Path) -> None:
    events = [
        {"type": "ADDED", "object": {"metadata": {"name": str(i), "x": "y" * (3_000_000 * (i == 1))}}} for i in range(3)
    ]

    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.query["allowWatchBookmarks"] == "true"
        assert request.query["resourceVersion"] == "5"
        response = web.StreamResponse()
        await response.prepare(request)
        raw = b"".join(json.dumps(event).encode() + b"\n" for event in events)
        cuts = (0, 7, 50, 51, 1_000_000, len(raw))
        for start, end in itertools.pairwise(cuts):
            await response.write(raw[start:end])
        return response

    async with serving(handler, tmp_path) as api:
        assert [event async for event in api.watch("pods", "ns", "", "5")] == events


@pytest.mark.parametrize("late", [False, True])
async def test_a_version_that_is_forgotten_is_expired_at_once_or_on_the_way(tmp_path: Path, late: bool) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
        if not late:
            return web.json_response(gone, status=410)
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
        return response

    async with serving(handler, tmp_path) as api:
        with pytest.raises(Expired, match="too old"):
            async for _ in api.watch("pods", "ns", "", "5"):
                pass


async def test_a_watch_that_goes_silent_is_given_up(tmp_path: Path) -> None:

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await hang(request)
        return response

    async with serving(handler, tmp_path) as api:
        with pytest.raises(KubeError, match="watch pods"):
            async for _ in api.watch("pods", "ns", "", "5", quiet_s=0.2):
                pass


async def test_without_credentials_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="set the kubeconfig") as failed:
        await KubeApi.open(KubeOptions(kubeconfig=str(tmp_path / "none")))
    assert not failed.value.retryable


async def test_an_unknown_kind_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.Response:
        raise AssertionError

    async with serving(handler, tmp_path) as api:
        with pytest.raises(InvalidSpec, match="'gizmos'"):
            await api.get("gizmos", "ns", "a")


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (403, "Forbidden", PermissionDenied),
        (404, "NotFound", NotFound),
        (409, "AlreadyExists", AlreadyExists),
        (409, "Conflict", Conflict),
        (422, "Invalid", InvalidSpec),
        (500, "InternalError", Unavailable),
    ],
)
async def test_errors_of_objects_are_those_of_the_one_tree(
    tmp_path: Path, code: int, reason: str, kind: type[Exception]
) -> None:
    async def handler(request: web.Request) -> web.Response:
        return status(code, reason, "it says why")

    async with serving(handler, tmp_path) as api:
        objects = KubeObjects(api, "ns")
        with pytest.raises(kind, match="it says why"):
            await objects.create({"kind": "Pod"})
        if code == 404:
            assert await objects.get("pods", "a") is None


def test_an_answer_that_is_no_status_is_still_an_error_that_reads() -> None:
    error = from_status(502, b"<html>bad gateway</html>", "get pods/a")
    assert error.message == "Kubernetes API: get pods/a: <html>bad gateway</html>"
    assert error.retryable
    assert as_domain_error(error) is error
    again = pickle.loads(pickle.dumps(from_status(410, b'{"kind": "Status", "reason": "Expired"}', "list pods")))
    assert isinstance(again, Expired)
    assert again.status == 410
