"""Where a release's objects lie, and what marks them as its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "longshore"
COMPONENT = "longshore.dev/component"
RELEASE = "longshore.dev/release"
NETWORK = "longshore.dev/network"


@dataclass(frozen=True)
class Placement:
    """Sandbox namespace, release name, and the ownerReference of the release's ConfigMap in that namespace."""

    namespace: str
    release: str
    owner: Mapping[str, Any]

    def labels(self, component: str, **more: str) -> dict[str, str]:
        """Labels of an object of a component; `network=` adds its network label."""
        labels = {MANAGED_BY: MANAGER, COMPONENT: component, RELEASE: self.release}
        if "network" in more:
            labels[NETWORK] = more["network"]
        return labels

    def selector(self, component: str) -> str:
        """Label selector of a component's objects."""
        return ",".join(f"{key}={value}" for key, value in self.labels(component).items())
