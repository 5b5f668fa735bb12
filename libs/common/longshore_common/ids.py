"""Identifiers that sort by time of creation."""

from __future__ import annotations

import os
import threading
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_lock = threading.Lock()
_last = 0


def _base32(value: int, length: int) -> str:
    digits = []
    for _ in range(length):
        digits.append(_ALPHABET[value & 31])
        value >>= 5
    return "".join(reversed(digits))


def new_id(prefix: str) -> str:
    """`<prefix>-<9 characters of time><7 random>`: lower-case, a valid Kubernetes name, ordered within a process."""
    global _last
    with _lock:
        now = max(time.time_ns() // 1_000_000, _last + 1)
        _last = now
    return f"{prefix}-{_base32(now, 9)}{_base32(int.from_bytes(os.urandom(5), 'big'), 7)}"
