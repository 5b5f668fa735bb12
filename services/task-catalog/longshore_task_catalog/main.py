"""Entry point of `python -m longshore_task_catalog`."""

from longshore_common.service import run_service


def main() -> int:
    """Runs the service until a signal; see `run_service` for exit statuses."""
    from longshore_task_catalog.bootstrap import build
    from longshore_task_catalog.settings import Settings

    return run_service("task-catalog", Settings, build)
