"""Settings of the rollout worker; read from LONGSHORE_ROLLOUT_WORKER_*."""

import socket

from pydantic import Field

from longshore_common.settings import ServiceSettings, service_config


def _host_name() -> str:
    return socket.gethostname()


class Settings(ServiceSettings):
    """What can be chosen. Times in seconds."""

    model_config = service_config("LONGSHORE_ROLLOUT_WORKER_")

    controller_address: str
    """host:port of the controller: leases come from there."""

    scheduler_address: str
    """host:port of the sandbox scheduler."""

    gateway_address: str
    """host:port of the inference gateway's gRPC; its HTTP address comes with each session."""

    trajectory_address: str
    """host:port of the trajectory store: outcomes go there."""

    verifier_address: str
    """host:port of the reward verifier."""

    catalog_address: str
    """host:port of the task catalog."""

    worker_name: str = Field(default_factory=_host_name)
    """First part of the worker's id; in a cluster the pod's name."""

    capacity: int = 32
    """Attempts at once. Each holds one sandbox and one model call; the worker itself only waits for them."""

    poll_s: float = 5.0
    """How long one call for leases waits for work."""

    heartbeat_s: float = 2.0
    """Between heartbeats; never longer than a quarter of the shortest lease. Also the delay until a cancel is seen."""

    drain_s: float = 5.0
    """On SIGTERM: how long running attempts may still end. What is left is stopped and leased again by its expiry."""

    sandbox_ttl_s: float = 120.0
    """Time to live of a sandbox; renewed at a third of it. A sandbox of a dead worker lives that long."""

    session_slack_s: float = 1800.0
    """Time to live of a gateway session beyond the agent's timeout: for time in queues."""

    claim_timeout_s: float = 300.0
    """How long a sandbox may take to be granted, a first build of its image included."""

    model_timeout_s: float = 600.0
    """One model call, queueing included. An engine that hangs is found by this, not by the agent's clock."""

    model_patience_s: float = 90.0
    """How long a full queue or an absent engine is waited out before the attempt fails. An engine starts in 60."""

    service_patience_s: float = 60.0
    """How long a service that does not answer is waited for: its restart must not cost an attempt one of its few
    retries."""

    verify_timeout_s: float = 3600.0
    """One Verify: tests, a re-grade and the oracle. Each has its own limit inside; this one finds a dead verifier."""

    regrade: bool = True
    """Whether failures that an agent can cause are graded once more in fresh conditions."""
