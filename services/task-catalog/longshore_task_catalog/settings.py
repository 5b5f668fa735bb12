"""What the task catalog can be told."""

from __future__ import annotations

from longshore_common.settings import ServiceSettings, service_config
from longshore_task_catalog.domain.model import Limits


class Settings(ServiceSettings):
    """Environment: LONGSHORE_TASK_CATALOG_*, and LONGSHORE_SECRET."""

    model_config = service_config("LONGSHORE_TASK_CATALOG_")

    scheduler_address: str = ""
    """host:port of the sandbox scheduler; needed by probes only."""

    verifier_address: str = ""
    """host:port of the reward verifier; needed by probes only."""

    objects_url: str | None = None
    """Where bundles are kept (file:///..., s3://..., gs://..., az://...); none: `objects` in data_dir."""

    probe_concurrency: int = 4
    """Sandboxes that one ProbeTasks call uses at a time when it names no number."""

    max_probe_concurrency: int = 64
    """Upper bound of what a call may ask for: each is a live sandbox."""

    claim_timeout_s: float = 600.0
    """Seconds to wait for a sandbox; a first claim may build the image."""

    default_cpus: float = 1.0
    """Cores of a task whose task.toml names none."""

    default_memory_mb: int = 2048
    """MiB of a task whose task.toml names none."""

    default_storage_mb: int = 10240
    """MiB of a task whose task.toml names none."""

    default_agent_timeout_s: float = 600.0
    """Seconds of an agent when task.toml names none (Harbor: unlimited, which a training run cannot afford)."""

    def resolved_objects_url(self) -> str:
        """The object store's URL, with the embedded default."""
        return self.objects_url or (self.data_dir.absolute() / "objects").as_uri()

    def default_limits(self) -> Limits:
        """What a task gets where its task.toml is silent."""
        return Limits(
            cpus=self.default_cpus,
            memory_mb=self.default_memory_mb,
            storage_mb=self.default_storage_mb,
            agent_timeout_s=self.default_agent_timeout_s,
        )
