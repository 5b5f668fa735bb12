"""What the trajectory store can be told."""

from __future__ import annotations

from longshore_common.settings import ServiceSettings, service_config


class Settings(ServiceSettings):
    """Environment: LONGSHORE_TRAJECTORY_STORE_*, and LONGSHORE_SECRET."""

    model_config = service_config("LONGSHORE_TRAJECTORY_STORE_")

    recheck_s: float = 2.0
    """Seconds after which waiters look again on Postgres, where another replica's commits wake nobody here."""
