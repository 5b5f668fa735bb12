"""The leases that this worker holds, and when one is not its own any more. Pure: times are given.

A lease ends for the worker when the controller says so (lost, cancelled), or when no heartbeat got through for its time
to live: by then the controller has given it to somebody else.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from longshore_rollout_worker.domain.ports import Lease, LeaseKey
from longshore_rollout_worker.domain.vocabulary import AttemptEnd


@dataclass
class _Entry:
    ttl_s: float
    confirmed: float
    stopped: AttemptEnd | None = None


class LeaseTable:
    """Held leases by key. Times are readings of one monotonic clock, seconds."""

    def __init__(self) -> None:
        self._entries: dict[LeaseKey, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: LeaseKey) -> bool:
        return key in self._entries

    def add(self, lease: Lease, now: float) -> None:
        """A lease was granted."""
        self._entries[lease.key] = _Entry(lease.ttl_s, now)

    def remove(self, key: LeaseKey) -> None:
        """Its attempt has ended here."""
        self._entries.pop(key, None)

    def keys(self) -> list[LeaseKey]:
        """What a heartbeat names: all that was not stopped."""
        return sorted(key for key, entry in self._entries.items() if entry.stopped is None)

    def stopped(self, key: LeaseKey) -> AttemptEnd | None:
        """Why the attempt was told to stop; None when it was not."""
        entry = self._entries.get(key)
        return entry.stopped if entry else None

    def confirm(self, keys: Iterable[LeaseKey], sent: float) -> None:
        """A heartbeat sent at `sent` was answered; what it named lives on from then."""
        for key in keys:
            entry = self._entries.get(key)
            if entry is not None:
                entry.confirmed = max(entry.confirmed, sent)

    def stop(self, keys: Iterable[LeaseKey], why: AttemptEnd) -> list[LeaseKey]:
        """Marks attempts to be stopped; gives those that were not stopped before."""
        fresh = []
        for key in keys:
            entry = self._entries.get(key)
            if entry is not None and entry.stopped is None:
                entry.stopped = why
                fresh.append(key)
        return fresh

    def expired(self, now: float) -> list[LeaseKey]:
        """Leases whose time to live has passed since the last answered heartbeat."""
        return [key for key in self.keys() if now - self._entries[key].confirmed >= self._entries[key].ttl_s]

    def shortest_ttl_s(self) -> float:
        """The shortest time to live among held leases; infinite when there is none."""
        return min((entry.ttl_s for entry in self._entries.values()), default=float("inf"))
