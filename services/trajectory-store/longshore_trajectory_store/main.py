"""Entry point of `python -m longshore_trajectory_store`."""

from longshore_common.service import run_service


def main() -> int:
    """Runs the service until a signal; see `run_service` for exit statuses."""
    from longshore_trajectory_store.bootstrap import build
    from longshore_trajectory_store.settings import Settings

    return run_service("trajectory-store", Settings, build)
