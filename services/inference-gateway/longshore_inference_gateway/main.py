"""Entry point of `python -m longshore_inference_gateway`."""

from longshore_common.service import run_service


def main() -> int:
    """Runs the service until a signal; see `run_service` for exit statuses."""
    from longshore_inference_gateway.bootstrap import build
    from longshore_inference_gateway.settings import Settings

    return run_service("inference-gateway", Settings, build)
