"""Fixtures of the scheduler's tests."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from scheduler_world import World, start_world


@pytest.fixture(scope="session")
def cache_dir() -> Path:
    """One base cache for all tests of this user; base trees are expensive to copy."""
    path = Path(tempfile.gettempdir()) / f"longshore-test-cache-{os.getuid()}"
    path.mkdir(exist_ok=True)
    return path


@pytest.fixture
async def world(tmp_path: Path, cache_dir: Path) -> AsyncIterator[World]:
    """A scheduler of its own for one test."""
    async with start_world(tmp_path / "scheduler", cache_dir) as started:
        yield started
