"""What network isolation needs of the Kubernetes API, in the sandbox namespace unless a namespace is named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class ClusterObjects(Protocol):
    """Objects by plural kind. Every call raises LongshoreError when the API server refuses or is away."""

    async def get(self, kind: str, name: str) -> Mapping[str, Any] | None:
        """None when it is not there."""
        ...

    async def list(self, kind: str, namespace: str, selector: str = "") -> Sequence[Mapping[str, Any]]:
        """namespace empty: cluster-wide."""
        ...

    async def create(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Raises AlreadyExists."""
        ...

    async def patch(self, kind: str, name: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """A JSON merge patch. Raises NotFound; Conflict when the body's resourceVersion is not the newest."""
        ...

    async def delete(self, kind: str, name: str, *, resource_version: str = "", grace_s: int | None = None) -> bool:
        """False when it is gone, or no longer has this resourceVersion. Its dependents go in the background."""
        ...

    async def log(self, kind: str, name: str) -> str:
        """What a pod's only container wrote."""
        ...
