"""Which of several schedulers of a release leads: who holds its coordination Lease."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from longshore_common.errors import InvalidSpec
from longshore_common.log import get_logger
from longshore_sandbox_scheduler.runtimes.pod.kube_errors import KubeError
from longshore_sandbox_scheduler.runtimes.pod.placement import Placement

log = get_logger(__name__)

COMPONENT = "leader"
_KIND = "leases"

Object = dict[str, Any]


class LeaseStore(Protocol):
    """What is needed of `KubeApi`."""

    async def get(self, kind: str, namespace: str, name: str) -> Object: ...

    async def create(self, kind: str, namespace: str, body: Mapping[str, Any]) -> Object: ...

    async def update(self, kind: str, namespace: str, name: str, body: Mapping[str, Any]) -> Object: ...


@dataclass(frozen=True)
class LeaseOptions:
    """Times in seconds."""

    name: str = "longshore-sandbox-scheduler"
    duration_s: int = 15
    """How long others wait after a leader's last sign of life."""
    renew_within_s: float = 10.0
    """A leader that could not renew for so long stops leading by itself, before others may start."""
    retry_s: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.retry_s < self.renew_within_s < self.duration_s:
            raise InvalidSpec("lease times must hold: retry_s < renew_within_s < duration_s", field="lease")


class LeaseLeadership:
    """`domain.ports.Leadership`. Clocks of other machines are not trusted: a lease is stale when it has not changed
    for its duration on our own clock."""

    def __init__(
        self,
        store: LeaseStore,
        place: Placement,
        identity: str,
        options: LeaseOptions,
        monotonic: Callable[[], float],
    ) -> None:
        self._store = store
        self._place = place
        self._identity = identity
        self._options = options
        self._monotonic = monotonic
        self._leads_until = float("-inf")
        self._seen: tuple[str, str] = ("", "")
        self._seen_at = float("-inf")

    @property
    def is_leader(self) -> bool:
        """False as soon as the lease could not be renewed in time, also while no call gets through."""
        return self._monotonic() < self._leads_until

    async def run(self) -> None:
        """Takes the lease when it is free and renews it, until cancelled; then gives it back."""
        try:
            while True:
                await self.step()
                await asyncio.sleep(self._options.retry_s * random.uniform(0.8, 1.2))
        finally:
            await self._release()

    async def step(self) -> None:
        """One try to take or renew."""
        led = self.is_leader
        asked_at = self._monotonic()
        try:
            held = await self._take_or_renew()
        except KubeError as error:
            log.warning("the leader lease cannot be reached", error=error.message)
            held = None
        if held is not None:
            # Counted from before the call: the lease was renewed at some time after it.
            self._leads_until = asked_at + self._options.renew_within_s if held else float("-inf")
        if led != self.is_leader:
            log.info("leadership changed", leader=self.is_leader, identity=self._identity)

    async def _take_or_renew(self) -> bool:
        lease = await self._get()
        if lease is None:
            return await self._write(self._store.create(_KIND, self._place.namespace, self._body(None)))
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder not in ("", self._identity) and not self._stale(holder, spec):
            return False
        name = self._options.name
        return await self._write(self._store.update(_KIND, self._place.namespace, name, self._body(lease)))

    async def _get(self) -> Object | None:
        try:
            return await self._store.get(_KIND, self._place.namespace, self._options.name)
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    def _stale(self, holder: str, spec: Mapping[str, Any]) -> bool:
        seen = (holder, str(spec.get("renewTime")))
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._monotonic()
        duration = float(spec.get("leaseDurationSeconds") or self._options.duration_s)
        return self._monotonic() - self._seen_at > duration

    async def _write(self, writing: Awaitable[Object]) -> bool:
        try:
            await writing
        except KubeError as error:
            if error.status in (404, 409):
                # Somebody else was faster.
                return False
            raise
        return True

    def _body(self, lease: Object | None) -> Object:
        old = (lease or {}).get("spec") or {}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        ours = old.get("holderIdentity") == self._identity
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._options.duration_s,
            "acquireTime": old.get("acquireTime") if ours else now,
            "renewTime": now,
            "leaseTransitions": int(old.get("leaseTransitions") or 0) + (0 if ours or lease is None else 1),
        }
        metadata = lease["metadata"] if lease else self._metadata()
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}

    def _metadata(self) -> Object:
        return {
            "name": self._options.name,
            "namespace": self._place.namespace,
            "labels": self._place.labels(COMPONENT),
            "ownerReferences": [dict(self._place.owner)],
        }

    async def _release(self) -> None:
        """So that the next one need not wait; when this fails the lease runs out."""
        if not self.is_leader:
            return
        self._leads_until = float("-inf")
        try:
            lease = await self._get()
            if lease is None or lease["spec"].get("holderIdentity") != self._identity:
                return
            lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
            await self._store.update(_KIND, self._place.namespace, self._options.name, lease)
        except KubeError as error:
            log.info("the leader lease was not given back; it runs out", error=error.message)
