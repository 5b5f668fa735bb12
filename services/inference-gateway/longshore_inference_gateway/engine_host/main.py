"""Entry point of `python -m longshore_inference_gateway.engine_host`."""

from longshore_common.service import run_service


def main() -> int:
    """Runs the host until a signal; see `run_service` for exit statuses."""
    from longshore_inference_gateway.engine_host.bootstrap import NAME, build
    from longshore_inference_gateway.engine_host.settings import Settings

    return run_service(NAME, Settings, build)
