"""Bounded output: whatever comes, head and tail are exact and the missing middle is known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longshore_sandbox_scheduler.domain.output import OutputBuffer


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=30), st.integers(1, 60), st.integers(0, 400))
def test_head_and_tail_are_what_was_written(parts: list[bytes], cap: int, offset: int) -> None:
    buffer = OutputBuffer(cap)
    for part in parts:
        buffer.append(part)
    written = b"".join(parts)
    head, tail = buffer.head_from(0), buffer.tail_from(0)
    kept = (head.data if head else b"") + (tail.data if tail else b"")
    assert buffer.total == len(written)
    assert len(kept) == min(cap, len(written))
    assert buffer.truncated == (len(written) > cap)
    if not buffer.truncated:
        assert kept == written
    for chunk in (buffer.head_from(offset), buffer.tail_from(offset)):
        if chunk is not None:
            assert chunk.offset >= offset
            assert written[chunk.offset : chunk.offset + len(chunk.data)] == chunk.data


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=30), st.integers(2, 60))
def test_head_never_changes_once_given(parts: list[bytes], cap: int) -> None:
    buffer, seen = OutputBuffer(cap), b""
    for part in parts:
        buffer.append(part)
        chunk = buffer.head_from(len(seen))
        seen += chunk.data if chunk else b""
    head = buffer.head_from(0)
    assert seen == (head.data if head else b"")
