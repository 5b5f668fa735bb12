"""Entry point of `python -m longshore_rollout_worker`."""

from longshore_common.service import run_service


def main() -> int:
    """Runs the service until a signal; see `run_service` for exit statuses."""
    from longshore_rollout_worker.bootstrap import build
    from longshore_rollout_worker.settings import Settings

    # The addresses come from the environment; run_service says which one is missing.
    return run_service("rollout-worker", lambda: Settings(), build)  # type: ignore[call-arg]
