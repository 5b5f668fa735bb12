"""What the inference gateway can be told."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from longshore_common.settings import ServiceSettings, service_config
from longshore_inference_gateway.engine_settings import EngineSettings


class EngineMode(StrEnum):
    """Where engines come from."""

    LOCAL = "local"
    HOSTED = "hosted"
    EXTERNAL = "external"


class Settings(EngineSettings, ServiceSettings):
    """Environment: LONGSHORE_INFERENCE_GATEWAY_*, and LONGSHORE_SECRET. How vLLM is started: see EngineSettings."""

    model_config = service_config("LONGSHORE_INFERENCE_GATEWAY_")

    http_address: str = "127.0.0.1:0"
    """host:port of the data port that harnesses call. Port 0: any free one."""

    advertised_url: str | None = None
    """Base of the URL that harnesses are told, e.g. http://10.0.0.7:7403; none: http://<http_address>."""

    advertise_ip: bool = False
    """Replace the name in advertised_url by its address, looked up once at start: sandboxes have no DNS."""

    advertise_patience_s: float = Field(default=30.0, ge=0)
    """Seconds that the look-up of advertise_ip is repeated: the name of a new Service takes a moment."""

    trajectory_address: str = "127.0.0.1:7406"
    """host:port of the trajectory store, where every turn is appended."""

    append_attempts: int = 5
    """How often an append is tried before the call fails: short outages of the store should not cost an attempt."""

    append_timeout_s: float = 20.0
    """Seconds for one append."""

    session_ttl_s: float = 3600.0
    """Seconds that a token works when OpenSession does not say."""

    max_body_bytes: int = 32 * 1024 * 1024
    """Largest request body; an agent is not trusted to be reasonable."""

    queue_limit: int = 1024
    """Calls that may wait for an engine; more are answered 429."""

    queue_timeout_s: float = 120.0
    """Seconds that a call may wait for an engine."""

    engine_dead_after_s: float = 60.0
    """Seconds without a good health answer until an engine of another process counts as lost: busy ones answer late."""

    engine_probe_s: float = 2.0
    """Seconds between health questions to engines of other processes; local ones are watched as processes."""

    engine_mode: EngineMode = EngineMode.LOCAL
    """local: vLLM as a child of the gateway. hosted: engine hosts at engine_addresses run it for us, with any model.
    external: engine_addresses are vLLM's own, run by somebody else with a fixed model."""

    engine_addresses: tuple[str, ...] = ()
    """host:port (JSON list in the environment) of engine hosts' gRPC, or of external engines; each of the latter must
    serve <alias>-v0."""

    engine_log_dir: str | None = None
    """Folder for logs of engines; none: data_dir/logs."""
