"""One output stream of a command: always drained, head and tail kept, what is missing known."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

DEFAULT_CAP = 1024 * 1024


@dataclass(frozen=True)
class Chunk:
    """Bytes at an offset of the raw stream."""

    offset: int
    data: bytes


class OutputBuffer:
    """Keeps the first half and the last half of `cap` bytes; counts all."""

    def __init__(self, cap: int) -> None:
        self._head_cap = max(cap - cap // 2, 0)
        self._tail_cap = cap // 2
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self.total = 0

    def append(self, data: bytes) -> None:
        """Takes what the command wrote next."""
        self.total += len(data)
        room = self._head_cap - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data and self._tail_cap:
            self._append_tail(data)

    def _append_tail(self, data: bytes) -> None:
        if len(data) >= self._tail_cap:
            self._tail.clear()
            self._tail.append(data[-self._tail_cap :])
            self._tail_size = self._tail_cap
            return
        self._tail.append(data)
        self._tail_size += len(data)
        while self._tail_size - len(self._tail[0]) >= self._tail_cap:
            self._tail_size -= len(self._tail.popleft())
        surplus = self._tail_size - self._tail_cap
        if surplus > 0:
            self._tail[0] = self._tail[0][surplus:]
            self._tail_size -= surplus

    @property
    def truncated(self) -> bool:
        """Whether bytes between head and tail are gone."""
        return self.total > len(self._head) + self._tail_size

    @property
    def full(self) -> bool:
        """Whether what comes now displaces kept bytes."""
        return len(self._head) >= self._head_cap and self._tail_size >= self._tail_cap

    def head_from(self, offset: int) -> Chunk | None:
        """What of the head lies at or after offset; the head never changes once written."""
        if offset >= len(self._head):
            return None
        return Chunk(offset, bytes(self._head[offset:]))

    def tail_from(self, offset: int) -> Chunk | None:
        """What of the tail lies at or after offset; it may still move while the command runs."""
        start = self.total - self._tail_size
        if not self._tail_size or offset >= self.total:
            return None
        data = b"".join(self._tail)
        first = max(start, offset)
        return Chunk(first, data[first - start :])
