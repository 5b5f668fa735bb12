"""Each service's settings in the all-in-one mode: where it listens, where its data is, where the others are.

Imports a service's package only when its settings are built, so that `longshore --help` stays quick.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from longshore_cli.errors import CliError
from longshore_cli.local.home import Home

HOST = "127.0.0.1"
DEFAULT_PORT_BASE = 7400


@dataclass(frozen=True)
class Service:
    """One service of the local mode. `key` names it in the other services' `<key>_address` settings."""

    name: str
    key: str
    package: str
    offset: int
    """gRPC port = port base + offset."""
    http_offset: int | None = None


SERVICES: tuple[Service, ...] = (
    Service("task-catalog", "catalog", "longshore_task_catalog", 1),
    Service("sandbox-scheduler", "scheduler", "longshore_sandbox_scheduler", 2),
    Service("inference-gateway", "gateway", "longshore_inference_gateway", 4, http_offset=3),
    Service("reward-verifier", "verifier", "longshore_reward_verifier", 5),
    Service("trajectory-store", "trajectory", "longshore_trajectory_store", 6),
    Service("controller", "controller", "longshore_controller", 8, http_offset=0),
    # Last to start and first to stop: its attempts may still end while all the others are there.
    Service("rollout-worker", "rollout", "longshore_rollout_worker", 7),
)
_BY_NAME = {service.name: service for service in SERVICES}

# Ports of a service beside its gRPC and HTTP ones, by the settings field that holds the address.
_EXTRA_PORTS: dict[str, dict[str, int]] = {"sandbox-scheduler": {"agent_address": 9}}


def by_name(names: Iterable[str] | None) -> tuple[Service, ...]:
    """The named services in start order; None: all."""
    return SERVICES if names is None else tuple(_BY_NAME[name] for name in _BY_NAME if name in set(names))


@dataclass(frozen=True)
class Layout:
    """Addresses of all services of one home: name to host:port; extra ports are `<name>.<field>`."""

    grpc: dict[str, str]
    http: dict[str, str]
    extra: dict[str, str]

    def all(self) -> dict[str, str]:
        """Every port with what needs it, for checks and messages."""
        return {**self.grpc, **{f"{name} (http)": at for name, at in self.http.items()}, **self.extra}


def fixed_layout(port_base: int) -> Layout:
    """Ports counted from the base."""
    return _layout(lambda offset: port_base + offset)


def free_layout() -> Layout:
    """Ports that are free now. Another process may take one before we do; then starting fails and says so."""
    ports = iter(free_ports(len(SERVICES) + 2 + sum(len(extra) for extra in _EXTRA_PORTS.values())))
    return _layout(lambda _: next(ports))


def _layout(port: Any) -> Layout:
    grpc = {s.name: f"{HOST}:{port(s.offset)}" for s in SERVICES}
    http = {s.name: f"{HOST}:{port(s.http_offset)}" for s in SERVICES if s.http_offset is not None}
    extra = {
        f"{name}.{field}": f"{HOST}:{port(offset)}"
        for name, more in _EXTRA_PORTS.items()
        for field, offset in more.items()
    }
    return Layout(grpc, http, extra)


def free_ports(count: int) -> list[int]:
    """Ports that are free now, all different."""
    held = []
    for _ in range(count):
        one = socket.socket()
        one.bind((HOST, 0))
        held.append(one)
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def check_ports(layout: Layout, services: Iterable[Service]) -> None:
    """Binds each port once, without SO_REUSEPORT, so that a gRPC server that would share it is found too.

    Raises:
        CliError: a port is in use; names it.
    """
    wanted = {service.name for service in services}
    for name, address in layout.all().items():
        if name.split(" ")[0].split(".")[0] not in wanted:
            continue
        host, _, port = address.rpartition(":")
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, int(port)))
            except OverflowError as error:
                raise CliError(f"port {port} for {name} does not exist: choose a --port-base below 65500") from error
            except OSError as error:
                raise CliError(
                    f"port {port} on {host}, wanted by {name}, is in use or not allowed: "
                    "stop what uses it, or choose other ports with --port-base"
                ) from error


def build_settings(
    service: Service,
    home: Home,
    layout: Layout,
    secret: str,
    log_level: str,
    overrides: Mapping[str, Any] | None = None,
) -> Any:
    """The service's own Settings object; `overrides` are fields that the caller wants otherwise.

    Raises:
        CliError: its package is not installed, or the environment sets a field wrongly.
    """
    from pydantic import ValidationError

    try:
        kind = import_module(f"{service.package}.settings").Settings
    except ModuleNotFoundError as error:
        raise CliError(
            f"{service.name} cannot be loaded ({error}): install the local set, see `longshore doctor`"
        ) from error
    values: dict[str, Any] = {
        "grpc_address": layout.grpc[service.name],
        "data_dir": home.service_dir(service.name),
        "secret": secret,
        "log_level": log_level,
    }
    if service.name in layout.http:
        values["http_address"] = layout.http[service.name]
    values |= {f"{other.key}_address": layout.grpc[other.name] for other in SERVICES}
    values |= {field: layout.extra[f"{service.name}.{field}"] for field in _EXTRA_PORTS.get(service.name, {})}
    values |= _folders(home)
    known = kind.model_fields
    try:
        return kind(**{name: value for name, value in values.items() if name in known} | dict(overrides or {}))
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise CliError(f"settings of {service.name} are wrong: {problems}; check LONGSHORE_* variables") from error


def _folders(home: Home) -> dict[str, Any]:
    """Folders that several services name alike."""
    return {
        "logs_dir": home.logs,
        "engine_log_dir": str(home.logs),
        "checkpoints_dir": home.path / "checkpoints",
    }
