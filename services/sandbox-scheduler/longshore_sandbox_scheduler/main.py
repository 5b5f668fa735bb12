"""Entry point of the sandbox scheduler."""

from __future__ import annotations

import asyncio
import sys

from longshore_common import log
from longshore_common.app import serve_until_signal
from longshore_common.errors import LongshoreError
from longshore_sandbox_scheduler.settings import Settings


async def _serve(settings: Settings) -> None:
    from longshore_sandbox_scheduler.bootstrap import build

    await serve_until_signal(await build(settings))


def main() -> None:
    """Reads settings, sets up logging, serves until a signal. Exit status 2 when it cannot start."""
    settings = Settings()
    log.configure(settings.log_level, settings.log_json)
    try:
        asyncio.run(_serve(settings))
    except LongshoreError as error:
        sys.stderr.write(f"sandbox-scheduler: {error.message}\n")
        raise SystemExit(2) from error
