"""The informer against a scripted API server: what it knows is what is there, whatever breaks on the way."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore_sandbox_scheduler.runtimes.pod import informer as informer_module
from longshore_sandbox_scheduler.runtimes.pod.informer import Informer
from longshore_sandbox_scheduler.runtimes.pod.kube_api import Page
from longshore_sandbox_scheduler.runtimes.pod.kube_errors import Expired, KubeError

Object = dict[str, Any]


class Server:
    """Pods with history, as etcd keeps them. Faults are asked for by the test: `cut` ends the watch, `broken` fails
    it, `compact` forgets history, `repeat` sends the last event again."""

    def __init__(self) -> None:
        self.version = 100
        self.pods: dict[str, Object] = {}
        self.history: list[tuple[int, str, Object]] = []
        self.compacted = 0
        self.lists = 0
        self.watches = 0
        self._uids = 0
        self._changed = asyncio.Event()
        self._fault: Exception | str | None = None
        self._again: list[Object] = []

    def put(self, name: str) -> None:
        self.version += 1
        known = self.pods.get(name)
        if known is None:
            self._uids += 1
        uid = known["metadata"]["uid"] if known else f"uid-{self._uids}"
        pod = {"metadata": {"name": name, "uid": uid, "resourceVersion": str(self.version)}, "spec": {"big": "x"}}
        self.pods[name] = pod
        self._record("MODIFIED" if known else "ADDED", pod)

    def drop(self, name: str) -> None:
        pod = self.pods.pop(name, None)
        if pod is not None:
            self.version += 1
            last = copy.deepcopy(pod)
            last["metadata"]["resourceVersion"] = str(self.version)
            last["last"] = True
            self._record("DELETED", last)

    def bookmark(self) -> None:
        self.version += 1
        self._record("BOOKMARK", {"metadata": {"resourceVersion": str(self.version)}})

    def _record(self, kind: str, pod: Object) -> None:
        self.history.append((self.version, kind, copy.deepcopy(pod)))
        self._wake()

    def compact(self) -> None:
        self.compacted = self.version
        self.history.clear()
        self._wake()

    def fault(self, fault: Exception | str) -> None:
        self._fault = fault
        self._wake()

    def repeat(self) -> None:
        """Sends what was sent before, as a server does that lost count."""
        self._again = [{"type": kind, "object": pod} for _, kind, pod in self.history[-3:] if kind != "DELETED"]
        self._wake()

    def _wake(self) -> None:
        self._changed.set()

    async def list(self, kind: str, namespace: str, selector: str = "") -> Page:
        assert (kind, namespace, selector) == ("pods", "ns", "a=b")
        self.lists += 1
        return Page([copy.deepcopy(pod) for pod in self.pods.values()], str(self.version))

    async def watch(self, kind: str, namespace: str, selector: str, version: str) -> AsyncIterator[Object]:
        self.watches += 1
        seen = int(version)
        while True:
            self._changed.clear()
            if seen < self.compacted:
                raise Expired(410, "Expired", "too old resource version")
            for at, what, pod in list(self.history):
                if at > seen:
                    seen = at
                    yield {"type": what, "object": copy.deepcopy(pod)}
            for event in self._again:
                yield copy.deepcopy(event)
            self._again = []
            if self._fault is not None:
                fault, self._fault = self._fault, None
                if isinstance(fault, Exception):
                    raise fault
                return
            await self._changed.wait()


class Told:
    """Rebuilds the state from what it is told, and checks each step against it."""

    def __init__(self) -> None:
        self.state: dict[str, str] = {}
        self.changes: list[tuple[str, str, str]] = []
        self.last_words: dict[str, Object] = {}
        self.faults: list[AssertionError] = []

    def __call__(self, name: str, before: Object | None, now: Object | None) -> None:
        try:
            self._take(name, before, now)
        except AssertionError as fault:
            # The informer goes on after a fault of ours; the test must not.
            self.faults.append(fault)

    def _take(self, name: str, before: Object | None, now: Object | None) -> None:
        if now is None:
            assert before is not None
            assert self.state.pop(name) == before["metadata"]["uid"]
            self.last_words[before["metadata"]["uid"]] = before
            return
        uid = now["metadata"]["uid"]
        if before is None:
            assert name not in self.state
        else:
            assert self.state[name] == uid == before["metadata"]["uid"]
            assert int(now["metadata"]["resourceVersion"]) > int(before["metadata"]["resourceVersion"])
        change = (name, uid, now["metadata"]["resourceVersion"])
        assert change not in self.changes
        self.changes.append(change)
        self.state[name] = uid


@contextlib.asynccontextmanager
async def watching(server: Server, told: Callable[..., None]) -> AsyncIterator[Informer]:
    made = Informer(server, "pods", "ns", "a=b", told)
    task = asyncio.create_task(made.run())
    try:
        await made.synced()
        yield made
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    if isinstance(told, Told) and told.faults:
        raise told.faults[0]


async def settle(server: Server, informer: Informer) -> None:
    """Until the informer knows what the server has; fails when it does not get there."""
    async with asyncio.timeout(5):
        while {n: p["metadata"]["resourceVersion"] for n, p in server.pods.items()} != {
            n: p["metadata"]["resourceVersion"] for n, p in informer.objects.items()
        }:
            await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer_module, "_FIRST_PAUSE_S", 0.0)


async def test_it_lists_once_and_then_only_watches() -> None:
    server, told = Server(), Told()
    server.put("a")
    async with watching(server, told) as informer:
        for i in range(50):
            server.put(f"p{i % 7}")
            if i % 5 == 0:
                server.drop(f"p{(i + 3) % 7}")
        await settle(server, informer)
    assert (server.lists, server.watches) == (1, 1)
    assert told.state == {name: pod["metadata"]["uid"] for name, pod in server.pods.items()}


async def test_a_cut_watch_goes_on_where_it_broke_without_a_list() -> None:
    server, told = Server(), Told()
    async with watching(server, told) as informer:
        for fault in ("cut", KubeError(0, "Cut", "no answer"), "cut"):
            server.put("a")
            server.fault(fault)
            await settle(server, informer)
            server.put("b")
            await settle(server, informer)
    assert server.lists == 1
    assert server.watches >= 3
    assert len(told.changes) == 6


async def test_a_version_that_is_too_old_is_a_new_list_and_deletions_in_between_are_noticed() -> None:
    server, told = Server(), Told()
    server.put("kept")
    server.put("gone")
    async with watching(server, told) as informer:
        # All of this happens while nobody watches, and then history is forgotten.
        server.fault("cut")
        server.drop("gone")
        server.put("new")
        server.compact()
        await settle(server, informer)
    assert server.lists == 2
    assert set(told.state) == {"kept", "new"}
    assert len(told.last_words) == 1


async def test_a_bookmark_moves_the_version_so_that_a_quiet_watch_never_expires() -> None:
    server, told = Server(), Told()
    server.put("a")
    async with watching(server, told) as informer:
        server.bookmark()
        await asyncio.sleep(0.01)
        server.compact()
        server.fault("cut")
        server.put("b")
        await settle(server, informer)
    assert server.lists == 1


async def test_a_pod_that_was_replaced_unseen_is_two_pods() -> None:
    server, told = Server(), Told()
    server.put("a")
    async with watching(server, told) as informer:
        first = told.state["a"]
        server.fault("cut")
        server.drop("a")
        server.put("a")
        server.compact()
        await settle(server, informer)
    assert told.state["a"] != first
    assert first in told.last_words


async def test_the_last_words_of_a_deleted_pod_are_those_of_its_deletion() -> None:
    server, told = Server(), Told()
    server.put("a")
    async with watching(server, told) as informer:
        uid = told.state["a"]
        server.drop("a")
        await settle(server, informer)
    assert told.last_words[uid]["last"]


async def test_events_that_come_twice_are_told_once() -> None:
    server, told = Server(), Told()
    async with watching(server, told) as informer:
        server.put("a")
        server.put("a")
        server.put("b")
        await settle(server, informer)
        server.repeat()
        await asyncio.sleep(0.01)
        server.put("c")
        await settle(server, informer)
    assert len(told.changes) == 4


async def test_a_change_that_is_not_understood_does_not_stop_the_rest() -> None:
    server = Server()
    names: list[str] = []

    def told(name: str, before: Object | None, now: Object | None) -> None:
        names.append(name)
        if name == "odd":
            raise KeyError("status")

    async with watching(server, told) as informer:
        for name in ("a", "odd", "b"):
            server.put(name)
        await settle(server, informer)
    assert names == ["a", "odd", "b"]


async def test_a_server_that_ends_every_watch_at_once_is_not_hammered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer_module, "_FIRST_PAUSE_S", 0.05)
    server = Server()

    async def nothing(*_: Any) -> AsyncIterator[Object]:
        server.watches += 1
        return
        yield {}

    monkeypatch.setattr(server, "watch", nothing)
    async with watching(server, Told()):
        await asyncio.sleep(0.3)
    assert 2 <= server.watches <= 10


async def test_only_the_view_is_kept() -> None:
    server = Server()
    server.put("a")
    made = Informer(server, "pods", "ns", "a=b", Told(), lambda pod: {"metadata": pod["metadata"]})
    task = asyncio.create_task(made.run())
    await made.synced()
    server.put("b")
    await settle(server, made)
    task.cancel()
    assert all(set(pod) == {"metadata"} for pod in made.objects.values())


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abcd")),
        st.tuples(st.just("drop"), st.sampled_from("abcd")),
        st.tuples(st.sampled_from(["cut", "broken", "compact", "bookmark", "repeat", "breathe"]), st.just("")),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_it_ends_up_knowing_what_is_there_and_never_tells_what_was_not(steps: list[tuple[str, str]]) -> None:
    async def play() -> None:
        server, told = Server(), Told()
        async with watching(server, told) as informer:
            for verb, name in steps:
                if verb in ("put", "drop"):
                    getattr(server, verb)(name)
                elif verb == "breathe":
                    for _ in range(20):
                        await asyncio.sleep(0)
                elif verb == "broken":
                    server.fault(KubeError(0, "Cut", "no answer"))
                elif verb == "cut":
                    server.fault("cut")
                else:
                    getattr(server, verb)()
            await settle(server, informer)
            assert told.state == {one: pod["metadata"]["uid"] for one, pod in server.pods.items()}

    pauses = informer_module._FIRST_PAUSE_S
    informer_module._FIRST_PAUSE_S = 0.0
    try:
        asyncio.run(play())
    finally:
        informer_module._FIRST_PAUSE_S = pauses
