"""Starts the rollout worker alone: settings, logging, bootstrap, serve."""

import asyncio

from longshore_common.app import serve_until_signal
from longshore_common.log import configure
from longshore_rollout_worker.bootstrap import build
from longshore_rollout_worker.settings import Settings


async def serve(settings: Settings) -> None:
    """Runs until SIGTERM or SIGINT."""
    await serve_until_signal(await build(settings))


def main() -> None:
    """Entry point of `python -m longshore_rollout_worker`."""
    settings = Settings()  # type: ignore[call-arg]  # read from the environment
    configure(settings.log_level, settings.log_json)
    asyncio.run(serve(settings))
