"""The one informer: a list, then a watch that goes on where it broke; nothing is polled."""

from __future__ import annotations

import asyncio
import random
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


class Source(Protocol):
    """Where objects come from: `KubeApi`, or a script in tests."""

    async def list(self, kind: str, namespace: str, selector: str = "") -> Page: ...

    def watch(self, kind: str, namespace: str, selector: str, version: str) -> AsyncIterator[Object]: ...


class Informer:
    """Keeps the objects of a selector by name and tells of every change, in order, once."""

    def __init__(self, source: Source, kind: str, namespace: str, selector: str, changed: Changed) -> None:
        self._source = source
        self._kind = kind
        self._namespace = namespace
        self._selector = selector
        self._changed = changed
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
                await self._watch()
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
        found = {item["metadata"]["name"]: item for item in items}
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
            self._version = item["metadata"]["resourceVersion"]
            if kind != "BOOKMARK":
                self._set(item["metadata"]["name"], None if kind == "DELETED" else item, item)

    def _set(self, name: str, item: Object | None, last: Object | None = None) -> None:
        before = self._objects.get(name)
        if item is None:
            if before is None:
                return
            # What it was at its end is in the event only.
            gone = self._objects.pop(name)
            self._changed(name, last or gone, None)
            return
        if before is not None and _same(before, item):
            return
        if before is not None and before["metadata"]["uid"] != item["metadata"]["uid"]:
            # Deleted and made anew while we did not look: two objects of one name.
            del self._objects[name]
            self._changed(name, before, None)
            before = None
        self._objects[name] = item
        self._changed(name, before, item)


def _same(one: Object, other: Object) -> bool:
    keys = ("uid", "resourceVersion")
    return all(one["metadata"].get(key) == other["metadata"].get(key) for key in keys)
