"""Entry point of `python -m longshore_sandbox_scheduler`."""

from longshore_common.service import run_service


def main() -> int:
    """Runs the service until a signal; see `run_service` for exit statuses."""
    from longshore_sandbox_scheduler.bootstrap import build
    from longshore_sandbox_scheduler.settings import Settings

    return run_service("sandbox-scheduler", Settings, build)
