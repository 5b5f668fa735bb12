"""Entry point of `python -m longshore_controller`."""

from longshore_common.service import run_service


def main() -> int:
    """Runs the service until a signal; see `run_service` for exit statuses."""
    from longshore_controller.bootstrap import build
    from longshore_controller.settings import Settings

    return run_service("controller", Settings, build)
