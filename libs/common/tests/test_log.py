"""Logs go to the standard error of the moment."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator

import pytest
import structlog

from longshore_common import log


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_a_replaced_stderr_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was closed since (a test's, a daemon's) must not break who logs later."""
    first = io.StringIO()
    monkeypatch.setattr(sys, "stderr", first)
    log.configure(json=True)
    logger = log.get_logger("here")
    logger.info("one")
    first.close()
    second = io.StringIO()
    monkeypatch.setattr(sys, "stderr", second)
    logger.info("two", attempt="a1")
    line = json.loads(second.getvalue())
    assert (line["event"], line["module"], line["attempt"]) == ("two", "here", "a1")


def test_level_and_stream() -> None:
    stream = io.StringIO()
    log.configure("warning", stream=stream)
    log.get_logger("here").info("quiet")
    log.get_logger("here").warning("loud")
    assert "quiet" not in stream.getvalue()
    assert "loud" in stream.getvalue()
