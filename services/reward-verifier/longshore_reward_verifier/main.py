"""Entry point of `python -m longshore_reward_verifier`."""

from longshore_common.service import run_service


def main() -> int:
    """Runs the service until a signal; see `run_service` for exit statuses."""
    from longshore_reward_verifier.bootstrap import build
    from longshore_reward_verifier.settings import Settings

    # The addresses come from the environment; run_service says which one is missing.
    return run_service("reward-verifier", lambda: Settings(), build)  # type: ignore[call-arg]
