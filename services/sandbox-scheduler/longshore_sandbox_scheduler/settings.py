"""Settings of the sandbox scheduler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from longshore_common.settings import ServiceSettings, service_config
from longshore_sandbox_scheduler.domain.bases import BaseRecipe, default_bases
from longshore_sandbox_scheduler.domain.pools import PoolPolicy
from longshore_sandbox_scheduler.runtimes.docker.assembly import DockerSettings
from longshore_sandbox_scheduler.runtimes.pod.assembly import PodSettings


class Settings(ServiceSettings):
    """Read from LONGSHORE_SANDBOX_SCHEDULER_*."""

    model_config = service_config("LONGSHORE_SANDBOX_SCHEDULER_") | SettingsConfigDict(env_nested_delimiter="__")

    agent_address: str = "127.0.0.1:0"
    """host:port of AgentService for the local runtime. Port 0: any free one; a claim's answer names it."""

    catalog_address: str = "127.0.0.1:7401"
    """host:port of the task catalog, where task bundles and limits come from."""

    runtime: Literal["bubblewrap", "docker", "pod"] = "bubblewrap"
    """Which runtime starts sandboxes."""

    pods: PodSettings = Field(default_factory=PodSettings)
    """Sandboxes on Kubernetes (runtime "pod"); as JSON, or field by field: ..._PODS__NAMESPACE."""

    docker: DockerSettings = Field(default_factory=DockerSettings)
    """Sandboxes on a Docker-compatible engine (runtime "docker"); as for pods: ..._DOCKER__ENGINE__HOST."""

    pool: PoolPolicy = Field(default_factory=PoolPolicy)
    """Warm pools, where the runtime can have them."""

    agent_advertise: str = ""
    """host:port of AgentService as callers reach it; empty: agent_address."""

    max_sandboxes: int = Field(default=64, ge=1)
    """Sandboxes at a time; further claims wait. Bounds memory: each holds its own limit."""

    max_waiting: int = Field(default=10_000, ge=0)
    """Claims that may wait; more are refused at once, with the time to come again."""

    claim_wait_s: float = Field(default=60.0, gt=0)
    """Longest wait of a claim for a free place, seconds; a shorter deadline of the caller wins."""

    default_ttl_s: float = Field(default=900.0, gt=0)
    """Lease of a claim that names none, seconds; long enough for one attempt between two renewals."""

    max_life_s: float = Field(default=6 * 3600.0, gt=0)
    """Longest life of a sandbox, however often its lease is renewed, seconds; its tokens end with it."""

    sweep_interval_s: float = Field(default=1.0, gt=0)
    """How often expired leases and watched limits are looked at, seconds."""

    orphan_sweep_interval_s: float = Field(default=30.0, gt=0)
    """How often objects that lost their sandbox are looked for, seconds."""

    keep_ended_s: float = Field(default=86400.0, gt=0)
    """How long records of ended sandboxes are kept, seconds; their end reason is asked for after deletion."""

    cache_dir: Path = Path("~/.cache/longshore")
    """Folder of base trees and built layers, shared by all schedulers of this user."""

    bases: dict[str, BaseRecipe] = Field(default_factory=default_bases)
    """FROM name -> how its root tree is made. A FROM that is not here is refused."""

    sandbox_uid_base: int = Field(default=1_879_048_192, gt=65_535)
    """First host uid given to sandboxes when the scheduler runs as root; 65536 for their users and 2^20 for their
    process limits from there on must be unused on this machine."""

    default_memory_mb: int = Field(default=1024, ge=16)
    """Memory of a sandbox whose task names none, MiB."""

    default_storage_mb: int = Field(default=2048, ge=1)
    """Writable storage of a sandbox whose task names none, MiB."""

    default_cpus: float = Field(default=1.0, gt=0)
    """CPUs of a sandbox whose task names none."""

    max_processes: int = Field(default=256, ge=8)
    """Processes and threads of one sandbox; task.toml has no field for it."""

    max_file_mb: int = Field(default=512, ge=1)
    """Largest file in a sandbox, MiB; task.toml has no field for it."""

    build_timeout_s: float = Field(default=600.0, gt=0)
    """Longest time of one RUN of a Dockerfile whose task names none, seconds."""

    use_cgroups: bool = True
    """False: only rlimits and the watchdog; for machines whose cgroup tree is writable but not ours to change."""

    @field_validator("pods", "docker", "pool", mode="before")
    @classmethod
    def _decode(cls, value: Any) -> Any:
        return _decoded(value)


def _decoded(value: Any) -> Any:
    """With JSON objects and lists in the place of their text: variables of single fields bring text."""
    if isinstance(value, dict):
        return {name: _decoded(one) for name, one in value.items()}
    if not isinstance(value, str) or not value.startswith(("{", "[")):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value  # An address may start with a bracket; whatever it is, its field says so.
