"""Structured logs on stderr. Run, attempt and sandbox ids are bound by `scope`."""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

import structlog

from longshore_common import tracing

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(level: str = "info", json: bool = False, stream: TextIO | None = None) -> None:
    """Sets up logging for this process; called by main only."""
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if json
        else structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            tracing.add_trace_id,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        # Looked up at each call: sys.stderr of now, not of the day this ran (it may be closed since).
        logger_factory=lambda *_: structlog.PrintLogger(stream or sys.stderr),
        cache_logger_on_first_use=False,
    )


def get_logger(name: str) -> structlog.typing.FilteringBoundLogger:
    """A logger that says which module speaks."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(module=name)
    return logger
