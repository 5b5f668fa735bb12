"""What the controller can be told; environment prefix LONGSHORE_CONTROLLER_."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from longshore_common.settings import ServiceSettings, service_config


class Settings(ServiceSettings):
    """Times are seconds."""

    model_config = service_config("LONGSHORE_CONTROLLER_")

    data_dir: Path = Path("runs/local/controller")
    """Folder of the database, job files and, unless checkpoints_dir is set, nothing else."""

    catalog_address: str = "127.0.0.1:7401"
    """host:port of the task catalog."""

    gateway_address: str = "127.0.0.1:7404"
    """host:port of the inference gateway's gRPC server."""

    scheduler_address: str = "127.0.0.1:7402"
    """host:port of the sandbox scheduler, which is told what the queue will want."""

    trajectory_address: str = "127.0.0.1:7406"
    """host:port of the trajectory store."""

    controller_address: str = "127.0.0.1:7408"
    """host:port of this service as trainers reach it."""

    base_dir: Path = Path()
    """Relative paths in run specs start here; default: the working folder."""

    max_artifact_mb: int = Field(default=256 * 1024, ge=1)
    """Largest artifact that may be pushed into base_dir, MiB; while it arrives it takes twice its size there."""

    checkpoints_dir: Path | None = None
    """Parent of each run's checkpoint folder; none: checkpoints beside data_dir."""

    logs_dir: Path | None = None
    """Trainer logs; none: logs beside data_dir."""

    trainer_processes: int = Field(default=1, ge=1)
    """Ranks of a trainer job on this machine (torchrun --nproc_per_node)."""

    trainer_threads: int = Field(default=1, ge=1)
    """OMP_NUM_THREADS of each rank: more than the free cores slows the engine down."""

    trainer_restarts: int = Field(default=3, ge=0)
    """Restarts of a trainer that made no step in between; then the run fails."""

    max_active_runs: int = Field(default=1, ge=1)
    """Runs at once; later ones wait. One, because a local engine serves one policy family at a time."""

    auto_resume: bool = False
    """Whether runs that a restart interrupted go on by themselves."""

    lease_ttl_s: float = Field(default=15.0, gt=0)
    """Time to live of a lease without heartbeat: how long a dead worker's attempt waits."""

    lease_batch: int = Field(default=256, ge=1)
    """Leases granted by one call at most."""

    publish_timeout_s: float = Field(default=600.0, gt=0)
    """Publishing version 0 includes the start of an engine (about a minute on a CPU)."""

    outage_patience_s: float = Field(default=300.0, ge=0)
    """How long a run waits for services that do not answer before it fails: an upgrade restarts them all."""

    reopen_timeout_s: float = Field(default=300.0, gt=0)
    """How long a resumed run waits for its trainer to open it again in the trajectory store."""

    max_refills: int = Field(default=8, ge=1)
    """Replacements of one training group; then the run fails, rather than spin on what cannot run."""
