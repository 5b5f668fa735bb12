"""An API server's objects in memory, for what a real cluster cannot be made to do on demand."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from longshore_common.errors import AlreadyExists, NotFound, PermissionDenied

_PLURALS = {"NetworkPolicy": "networkpolicies", "Service": "services", "Deployment": "deployments", "Pod": "pods"}


class FakeObjects:
    """ClusterObjects with counted writes. `forbidden` kinds cannot be listed; `on_create` may change what is stored."""

    def __init__(self) -> None:
        self.stored: dict[tuple[str, str], dict[str, Any]] = {}
        self.elsewhere: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        self.writes: list[tuple[str, str, str]] = []
        self.forbidden: set[str] = set()
        self.on_create: Callable[[str, dict[str, Any]], None] = lambda kind, body: None
        self._numbers = itertools.count(1)

    def named(self, kind: str) -> set[str]:
        return {name for stored_kind, name in self.stored if stored_kind == kind}

    async def get(self, kind: str, name: str) -> Mapping[str, Any] | None:
        return copy.deepcopy(self.stored.get((kind, name)))

    async def list(self, kind: str, namespace: str, selector: str = "") -> Sequence[Mapping[str, Any]]:
        if kind in self.forbidden:
            raise PermissionDenied(f"may not list {kind}")
        if (kind, namespace) in self.elsewhere or namespace != "sandboxes":
            return list(self.elsewhere.get((kind, namespace), ()))
        wanted = dict(part.split("=", 1) for part in selector.split(",") if part)
        own = [body for (stored_kind, _), body in self.stored.items() if stored_kind == kind]
        return [copy.deepcopy(one) for one in own if wanted.items() <= one["metadata"]["labels"].items()]

    async def create(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        kind, name = _PLURALS[body["kind"]], body["metadata"]["name"]
        self.writes.append(("create", kind, name))
        if (kind, name) in self.stored:
            raise AlreadyExists(name)
        stored = copy.deepcopy(dict(body))
        number = next(self._numbers)
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        stored["metadata"] |= {"uid": f"{number:08d}-uid", "resourceVersion": str(number), "creationTimestamp": now}
        self.on_create(kind, stored)
        self.stored[kind, name] = stored
        return copy.deepcopy(stored)

    async def patch(self, kind: str, name: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        self.writes.append(("patch", kind, name))
        if (kind, name) not in self.stored:
            raise NotFound(name)
        merged = _merge(self.stored[kind, name], body)
        merged["metadata"]["resourceVersion"] = str(next(self._numbers))
        self.stored[kind, name] = merged
        return copy.deepcopy(merged)

    async def delete(self, kind: str, name: str, *, resource_version: str = "", grace_s: int | None = None) -> bool:
        self.writes.append(("delete", kind, name))
        current = self.stored.get((kind, name))
        if current is None or (resource_version and current["metadata"]["resourceVersion"] != resource_version):
            return False
        del self.stored[kind, name]
        return True

    async def log(self, kind: str, name: str) -> str:
        raise NotFound(name)


def _merge(old: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """RFC 7396."""
    merged = dict(old)
    for key, value in change.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            merged[key] = _merge(merged.get(key) or {}, value)
        else:
            merged[key] = value
    return merged
