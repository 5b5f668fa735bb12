"""Harbor's task.toml, schema versions 1.0 to 1.4.

Unknown fields do not stop a task (Harbor ignores them): each becomes a warning that suggests the field it resembles.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
import tomllib
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from longshore_task_catalog.domain.model import Finding, Limits, Severity

FILE = "task.toml"
NetworkMode = Literal["public", "no-network", "allowlist"]
_HOST = re.compile(r"(\*\.)?([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*$", re.IGNORECASE)
_MIB = {"": 1 / (1024 * 1024), "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}


class _Table(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)


class TaskTable(_Table):
    """[task]"""

    name: str
    version: str | None = None
    description: str = ""
    authors: list[dict[str, Any]] = Field(default_factory=list)
    keywords: list[str] = Field(default_factory=list)


class HealthcheckTable(_Table):
    """[environment.healthcheck]"""

    command: str
    interval_sec: float = 5
    timeout_sec: float = 30
    start_period_sec: float = 0
    start_interval_sec: float = 5
    retries: int = 3


class EnvironmentTable(_Table):
    """[environment]; also [verifier.environment]."""

    build_timeout_sec: float = Field(default=600, gt=0)
    docker_image: str | None = None
    os: Literal["linux", "windows"] = "linux"
    cpus: float | None = Field(default=None, gt=0)
    memory_mb: int | None = Field(default=None, gt=0)
    storage_mb: int | None = Field(default=None, gt=0)
    gpus: int | None = Field(default=None, ge=0)
    gpu_types: list[str] | None = None
    tpu: dict[str, Any] | None = None
    mcp_servers: list[dict[str, Any]] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    skills_dir: str | None = None
    healthcheck: HealthcheckTable | None = None
    workdir: str | None = None
    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None
    memory: str | None = None
    storage: str | None = None
    allow_internet: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> EnvironmentTable:
        for old, new in (("memory", "memory_mb"), ("storage", "storage_mb")):
            size = getattr(self, old)
            if size is None:
                continue
            if parse_size_mb(size) is None:
                raise ValueError(f"{old} = {size!r} is no size; write {new} = <MiB>")
            if getattr(self, new) is not None:
                raise ValueError(f"{old} and {new} are both set; keep {new}")
        if self.allowed_hosts and self.network_mode != "allowlist":
            raise ValueError('allowed_hosts needs network_mode = "allowlist"')
        if self.network_mode == "allowlist" and not self.allowed_hosts:
            raise ValueError('network_mode = "allowlist" needs allowed_hosts; write "no-network" for none')
        for host in self.allowed_hosts or ():
            if not is_host_or_cidr(host):
                raise ValueError(f"allowed_hosts: {host!r} is no host (a.example or *.example) and no CIDR")
        return self

    def asked_network(self) -> NetworkMode | Literal[""]:
        """The network that the task asks for, by the new field or the old one; empty: it does not say."""
        if self.network_mode is not None or self.allow_internet is None:
            return self.network_mode or ""
        return "public" if self.allow_internet else "no-network"


class CollectTable(_Table):
    """[[verifier.collect]]"""

    command: str
    service: str = "main"
    timeout_sec: float = 60
    user: str | int | None = None


class VerifierTable(_Table):
    """[verifier]"""

    timeout_sec: float = Field(default=600, gt=0)
    env: dict[str, str] = Field(default_factory=dict)
    user: str | int | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: EnvironmentTable | None = None
    collect: list[CollectTable] = Field(default_factory=list)
    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None


class AgentTable(_Table):
    """[agent]"""

    timeout_sec: float | None = Field(default=None, gt=0)
    user: str | int | None = None
    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None


class SolutionTable(_Table):
    """[solution]"""

    env: dict[str, str] = Field(default_factory=dict)


class StepTable(_Table):
    """[[steps]]"""

    name: str
    agent: AgentTable | None = None
    verifier: VerifierTable | None = None
    min_reward: float | dict[str, float] | None = None
    healthcheck: HealthcheckTable | None = None
    artifacts: list[str | dict[str, Any]] = Field(default_factory=list)


class TaskConfig(_Table):
    """The whole file."""

    schema_version: str | None = None
    version: str | None = None
    source: str | None = None
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    artifacts: list[str | dict[str, Any]] = Field(default_factory=list)
    task: TaskTable | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    verifier: VerifierTable = Field(default_factory=VerifierTable)
    agent: AgentTable = Field(default_factory=AgentTable)
    environment: EnvironmentTable = Field(default_factory=EnvironmentTable)
    solution: SolutionTable = Field(default_factory=SolutionTable)
    steps: list[StepTable] = Field(default_factory=list)

    def limits(self, defaults: Limits) -> Limits:
        """What the task asks for, with the defaults where it is silent."""
        environment = self.environment
        return Limits(
            cpus=environment.cpus or defaults.cpus,
            memory_mb=_first(environment.memory_mb, environment.memory, defaults.memory_mb),
            storage_mb=_first(environment.storage_mb, environment.storage, defaults.storage_mb),
            agent_timeout_s=self.agent.timeout_sec or defaults.agent_timeout_s,
            verifier_timeout_s=self.verifier.timeout_sec,
            build_timeout_s=environment.build_timeout_sec,
        )


def _first(size_mb: int | None, size: str | None, default: int) -> int:
    if size_mb is not None:
        return size_mb
    return (parse_size_mb(size) if size is not None else None) or default


def parse_size_mb(text: str) -> int | None:
    """MiB of Harbor's old size strings ("2G", "512M", bytes without a unit), at least 1; None when it is no size."""
    match = _SIZE.match(text)
    if match is None or float(match[1]) <= 0:
        return None
    return max(1, round(float(match[1]) * _MIB[match[2].upper()]))


def is_host_or_cidr(text: str) -> bool:
    """Whether an allowlist may name it: a.example, *.example, 192.0.2.0/24."""
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return _HOST.fullmatch(text.lower().rstrip(".")) is not None
    return True


def parse(text: str) -> tuple[TaskConfig | None, list[Finding]]:
    """The config and what is wrong with it; no config when it cannot be used."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return None, [_broken(text, str(error))]
    try:
        config = TaskConfig.model_validate(raw)
    except ValidationError as error:
        return None, [_invalid(text, problem) for problem in error.errors()]
    return config, [_unknown(text, path, known) for path, known in unknown_fields(config)]


def _broken(text: str, message: str) -> Finding:
    at = re.search(r"\(at line (\d+), column \d+\)", message)
    line = int(at[1]) if at else text.count("\n") + 1
    return Finding(Severity.ERROR, "toml-broken", f"{FILE}:{line}", f"not TOML: {message}; correct the line")


def _invalid(text: str, problem: Any) -> Finding:
    path = tuple(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    return Finding(Severity.ERROR, "toml-invalid", _where(text, path), f"{'.'.join(path) or 'file'}: {message}")


def _unknown(text: str, path: tuple[str, ...], known: list[str]) -> Finding:
    near = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.6)
    advice = f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(known))}"
    return Finding(Severity.WARNING, "unknown-field", _where(text, path), f"{'.'.join(path)} is ignored; {advice}")


def unknown_fields(table: BaseModel, prefix: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], list[str]]]:
    """Paths of fields that the schema does not have, each with the names known at that place."""
    known = list(type(table).model_fields)
    found = [((*prefix, name), known) for name in table.model_extra or {}]
    for name in known:
        value = getattr(table, name)
        if isinstance(value, _Table):
            found += unknown_fields(value, (*prefix, name))
        elif isinstance(value, list):
            for item in value:
                found += unknown_fields(item, (*prefix, name)) if isinstance(item, _Table) else []
    return found


def _where(text: str, path: tuple[str, ...]) -> str:
    """task.toml:line of the field, or of its table, as far as a plain reading of the lines finds it."""
    keys = [part for part in path if not part.isdigit()]
    table: list[str] = []
    table_line = 0
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if header := re.match(r"^\[{1,2}\s*([^\[\]]+?)\s*\]{1,2}", stripped):
            table = [part.strip().strip('"') for part in header[1].split(".")]
            if table == keys[: len(table)]:
                table_line = number
        elif table == keys[:-1] and keys and re.match(rf'^"?{re.escape(keys[-1])}"?\s*=', stripped):
            return f"{FILE}:{number}"
    return f"{FILE}:{table_line}" if table_line else FILE
