"""Settings of the reward verifier; read from LONGSHORE_REWARD_VERIFIER_*."""

from longshore_common.settings import ServiceSettings, service_config


class Settings(ServiceSettings):
    """What can be chosen. Times in seconds, sizes in bytes unless a name says otherwise."""

    model_config = service_config("LONGSHORE_REWARD_VERIFIER_")

    catalog_address: str
    """host:port of the task catalog: tests and solutions come from there."""

    scheduler_address: str
    """host:port of the sandbox scheduler: fresh sandboxes for re-grades come from there."""

    max_concurrent: int = 32
    """Verify calls that run at once; more wait. Each runs a task's tests on the sandbox's node, not here."""

    max_regrades: int = 4
    """Re-grades at once: each holds an exported state in memory and claims up to two sandboxes."""

    max_state_mb: int = 64
    """MiB of an agent's working folder that a re-grade exports at most."""

    bundle_cache_mb: int = 256
    """MiB of test and solution archives kept in memory."""

    output_kb: int = 256
    """KiB kept per output stream of the tests; the middle of more is dropped."""

    excerpt_chars: int = 4000
    """Characters of head and of tail of the output that go into the reward's provenance."""

    reward_file_kb: int = 64
    """KiB of a reward file; a larger one is malformed."""

    claim_timeout_s: float = 120.0
    """How long a fresh sandbox may take to be granted."""

    service_patience_s: float = 60.0
    """How long a catalog that does not answer is waited for: its restart must not cost an attempt its grade."""

    sandbox_slack_s: float = 120.0
    """Time to live of a fresh sandbox beyond the tests' and the oracle's timeouts."""
