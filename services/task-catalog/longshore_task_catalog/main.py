"""settings -> logging -> bootstrap -> serve."""

from __future__ import annotations

import asyncio
import sys

from longshore_common.app import serve_until_signal
from longshore_common.errors import LongshoreError
from longshore_common.log import configure
from longshore_task_catalog.bootstrap import build
from longshore_task_catalog.settings import Settings


async def _serve(settings: Settings) -> None:
    await serve_until_signal(await build(settings))


def main() -> int:
    """Runs until SIGTERM or SIGINT. 0: stopped; 2: could not start."""
    settings = Settings()
    configure(settings.log_level, settings.log_json)
    try:
        asyncio.run(_serve(settings))
    except LongshoreError as error:
        print(f"task-catalog: {error.message}", file=sys.stderr)
        return 2
    return 0
