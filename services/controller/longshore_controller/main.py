"""Starts the controller alone."""

from __future__ import annotations

import asyncio
import sys

from longshore_common import log
from longshore_common.app import serve_until_signal
from longshore_common.errors import LongshoreError
from longshore_controller.bootstrap import build
from longshore_controller.settings import Settings


async def _serve(settings: Settings) -> None:
    await serve_until_signal(await build(settings))


def main() -> None:
    """Settings from the environment; runs until SIGTERM or SIGINT. Exit status 2: it could not start."""
    settings = Settings()
    log.configure(settings.log_level, settings.log_json)
    try:
        asyncio.run(_serve(settings))
    except LongshoreError as error:
        sys.stderr.write(f"controller: {error.message}\n")
        sys.exit(2)
