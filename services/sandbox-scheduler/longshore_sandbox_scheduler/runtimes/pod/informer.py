"""The one informer: a list, then a watch that goes on where it broke; nothing is polled."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol

from longshore_common.log import get_logger
from longshore_sandbox_scheduler.domain import metrics
from longshore_sandbox_scheduler.runtimes.pod.kube_api import Page
from longshore_sandbox_scheduler.runtimes.pod.kube_errors import Expired, KubeError

log = get_logger(__name__)

Object = dict[str, Any]
Changed = Callable[[str, Object | None, Object | None], None]
"""Name, object before (None: new), object now (None: deleted)."""

_FIRST_PAUSE_S = 0.2
_MAX_PAUSE_S = 10.0
_SHORT_WATCH_S = 1.0


class Source(Protocol):
    """Where objects come from: `KubeApi`, or a script in tests."""

    async def list(self, kind: str, namespace: str, selector: str = "") -> Page: ...

    def watch(self, kind: str, namespace: str, selector: str, version: str) -> AsyncIterator[Object]: ...


class Informer:
    """Keeps the objects of a selector by name and tells of every change, in order, once."""

    def __init__(
        self,
        source: Source,
        kind: str,
        namespace: str,
        selector: str,
        changed: Changed,
        view: Callable[[Object], Object] = lambda item: item,
    ) -> None:
        """view: the part of an object that is kept; its name, uid and resourceVersion at least."""
        self._source = source
        self._kind = kind
        self._namespace = namespace
        self._selector = selector
        self._changed = changed
        self._view = view
        self._objects: dict[str, Object] = {}
        self._version = ""
        self._synced = asyncio.Event()
        self.relists = 0

    @property
    def objects(self) -> Mapping[str, Object]:
        """As the API server last said."""
        return self._objects

    async def synced(self) -> None:
        """Returns once the first list is in."""
        await self._synced.wait()

    async def run(self) -> None:
        """Until cancelled."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                if not self._version:
                    await self._list()
                began = time.monotonic()
                await self._watch()
                if time.monotonic() - began < _SHORT_WATCH_S:
                    # A server that is about to stop ends watches as fast as we open them.
                    await asyncio.sleep(_FIRST_PAUSE_S)
                pause_s = _FIRST_PAUSE_S
            except Expired:
                log.info("the watch is too old; listing again", kind=self._kind)
                self._version = ""
            except KubeError as error:
                log.warning("watch broken", kind=self._kind, error=error.message, pause_s=pause_s)
                metrics.WATCH_BREAKS.labels(self._kind).inc()
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
                pause_s = min(_MAX_PAUSE_S, 2 * pause_s)

    async def _list(self) -> None:
        items, version = await self._source.list(self._kind, self._namespace, self._selector)
        found = {item["metadata"]["name"]: self._view(item) for item in items}
        for name in [name for name in self._objects if name not in found]:
            self._set(name, None)
        for name, item in found.items():
            self._set(name, item)
        self._version = version
        self.relists += 1
        self._synced.set()

    async def _watch(self) -> None:
        async for event in self._source.watch(self._kind, self._namespace, self._selector, self._version):
            kind, item = event["type"], event["object"]
            version = item["metadata"]["resourceVersion"]
            if int(version) <= int(self._version):
                # Told before; a pod that is gone must not come back by it.
                continue
            self._version = version
            if kind != "BOOKMARK":
                shown = self._view(item)
                self._set(shown["metadata"]["name"], None if kind == "DELETED" else shown, shown)

    def _set(self, name: str, item: Object | None, last: Object | None = None) -> None:
        before = self._objects.get(name)
        if item is None:
            if before is None:
                return
            # What it was at its end is in the event only.
            gone = self._objects.pop(name)
            self._tell(name, last or gone, None)
            return
        if before is not None and not _is_news_of(before, item):
            return
        if before is not None and before["metadata"]["uid"] != item["metadata"]["uid"]:
            # Deleted and made anew while we did not look: two objects of one name.
            del self._objects[name]
            self._tell(name, before, None)
            before = None
        self._objects[name] = item
        self._tell(name, before, item)

    def _tell(self, name: str, before: Object | None, now: Object | None) -> None:
        try:
            self._changed(name, before, now)
        except Exception:
            # One object that is not understood must not blind us to all others.
            log.exception("a change could not be taken in", kind=self._kind, name=name)


def _is_news_of(before: Object, item: Object) -> bool:
    """False: an event that was there before, or is older than what is known, as after a reconnect."""
    old, new = before["metadata"], item["metadata"]
    return old["uid"] != new["uid"] or int(new["resourceVersion"]) > int(old["resourceVersion"])
