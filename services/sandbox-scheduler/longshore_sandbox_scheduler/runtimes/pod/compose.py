"""docker-compose.yaml of a task: `main` is the agent's container, the other services become its pod's sidecars. Pure.

All containers of a pod share one address, so services find each other by name on 127.0.0.1, and two of them cannot
listen on one port. Named volumes start empty. What cannot be honoured is refused, never left out silently.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any

import yaml

from longshore_common.errors import InvalidSpec
from longshore_sandbox_scheduler.domain.model import Sidecar
from longshore_sandbox_scheduler.runtimes.pod.compose_shapes import Yaml12, problem_of_service

FILES = ("environment/docker-compose.yaml", "environment/docker-compose.yml")
MAIN = "main"

_MAX_BYTES = 256 * 1024
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_ALIAS = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?(?:(\d+)us)?")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_VARIABLE = re.compile(r"\$(?:(\$)|(\w+)|\{(\w+)(?:(:?[-+?])([^}]*))?\})")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_MEBIBYTE = 1 << 20

_TOP = frozenset({"version", "name", "services", "volumes", "networks"})
_NO_EFFECT = frozenset({
    "attach", "container_name", "domainname", "init", "labels", "logging", "platform", "pull_policy", "restart",
    "stdin_open", "stop_grace_period", "stop_signal", "tty", "expose", "annotations",
})  # fmt: skip
"""Say nothing that a task could tell, or are read elsewhere (container_name, expose)."""
_HONOURED = frozenset({
    "image", "build", "command", "entrypoint", "environment", "healthcheck", "depends_on", "volumes", "tmpfs",
    "working_dir", "user", "ports", "networks", "network_mode", "hostname", "mem_limit", "cpus", "deploy", "shm_size",
    "profiles", "privileged",
})  # fmt: skip

_DEFAULT_INTERVAL_S = 30.0
_DEFAULT_TIMEOUT_S = 30.0
_DEFAULT_RETRIES = 3
_LONGEST_PERIOD_S = 5.0
"""A start is waited for, so it is looked at more often than a service that runs."""
_DEFAULT_CPUS = 1.0
_DEFAULT_MEMORY_MB = 1024
_STORAGE_MB = 2048

Node = Mapping[str, Any]


@dataclass(frozen=True)
class Compose:
    """What a compose file says. Empty fields of main: it does not say."""

    main_image: str = ""
    """Image of main that is not built from the task's own environment."""
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = ""
    user: str = ""
    sidecars: tuple[Sidecar, ...] = ()
    """In the order in which they must start."""


def parse(text: str, where: str = FILES[0], variables: Mapping[str, str] | None = None) -> Compose:
    """Reads a compose file; variables: for its ${NAME}.

    Raises:
        InvalidSpec: naming service and key of what cannot be honoured, and why.
    """
    return _Reader(where, variables or {}).read(text)


class _Reader:
    def __init__(self, where: str, variables: Mapping[str, str]) -> None:
        self._where = where
        self._variables = variables

    def refuse(self, path: str, why: str) -> InvalidSpec:
        return InvalidSpec(f"{self._where}: {path}: {why}", field=f"{self._where}:{path}")

    # -- the file

    def read(self, text: str) -> Compose:
        if len(text.encode()) > _MAX_BYTES:
            raise self.refuse("file", f"is larger than {_MAX_BYTES} bytes")
        try:
            loaded = yaml.load(text, Yaml12)
        except yaml.YAMLError as error:
            raise self.refuse("file", f"is not YAML: {error}") from error
        root = self._mapping("file", loaded)
        for key in root:
            if key not in _TOP and not str(key).startswith("x-"):
                raise self.refuse(str(key), "is not supported in a sandbox; remove it")
        self._check_volumes(root.get("volumes"))
        services = {
            str(name): self._mapping(f"services.{name}", self._expand(f"services.{name}", node))
            for name, node in self._mapping("services", root.get("services")).items()
        }
        for name, service in services.items():
            if problem := problem_of_service(service):
                raise self.refuse(f"services.{name}.{problem[0]}", problem[1])
        if MAIN not in services:
            raise self.refuse("services", f"there is no service {MAIN!r}, which is the agent's container")
        # A service of a profile is started by name only.
        services = {name: one for name, one in services.items() if name == MAIN or not one.get("profiles")}
        self._check_names(services)
        self._check_networks(services)
        self._check_ports(services)
        return self._compose(services)

    def _compose(self, services: Mapping[str, Node]) -> Compose:
        for name, service in services.items():
            self._check_keys(name, service)
        main = services[MAIN]
        mounts = [mount for name, service in services.items() for mount in self._mounts(name, service)]
        order = [name for name in self._order(services) if name != MAIN]
        once = self._run_once(services)
        sidecars = tuple(
            Sidecar(name, self._image(name, services[name]), self._spec(name, services[name], name in once))
            for name in order
        )
        if mounts and not sidecars:
            mounts = [mount for mount in mounts if mount.get("medium")]
            if mounts:
                raise self.refuse(f"services.{MAIN}.tmpfs", "needs a second service here; use a folder")
        if mounts:
            first = sidecars[0]
            sidecars = (Sidecar(first.name, first.reference, {**first.spec, "volumes": mounts}), *sidecars[1:])
        return Compose(
            main_image="" if "build" in main else str(main.get("image", "")),
            env=self._environment(MAIN, main),
            workdir=str(main.get("working_dir", "")),
            user=str(main.get("user", "")).partition(":")[0],
            sidecars=sidecars,
        )

    def _mapping(self, path: str, node: Any) -> Node:
        if not isinstance(node, Mapping):
            raise self.refuse(path, f"must be a mapping, not {type(node).__name__}")
        return node

    def _expand(self, path: str, node: Any) -> Any:
        """Values with their ${NAME} filled in, as compose does."""
        if isinstance(node, str):
            return _VARIABLE.sub(lambda match: self._value(path, match), node)
        if isinstance(node, Mapping):
            return {key: self._expand(f"{path}.{key}", value) for key, value in node.items()}
        if isinstance(node, list):
            return [self._expand(path, value) for value in node]
        return node

    def _value(self, path: str, match: re.Match[str]) -> str:
        dollar, plain, braced, operator, word = match.groups()
        if dollar:
            return "$"
        found = self._variables.get(plain or braced)
        operator, word = operator or "", word or ""
        if operator.endswith("+"):
            return word if found else ""
        if found or (found is not None and not operator.startswith(":")):
            return found
        if operator.endswith("-"):
            return word
        raise self.refuse(path, f"${{{plain or braced}}} has no value here; write it out, or ${{NAME:-default}}")

    # -- checks over all services

    def _check_volumes(self, node: Any) -> None:
        for name, listed in self._mapping("volumes", node or {}).items():
            volume = self._mapping(f"volumes.{name}", listed or {})
            if volume.get("external") or volume.get("driver_opts") or volume.get("driver", "local") != "local":
                raise self.refuse(f"volumes.{name}", "lies outside the sandbox; only plain named volumes are made")

    def _check_names(self, services: Iterable[str]) -> None:
        for name in services:
            if not _LABEL.fullmatch(name):
                raise self.refuse(f"services.{name}", "a service's name must be lower-case letters, digits and '-'")

    def _check_networks(self, services: Mapping[str, Node]) -> None:
        """Containers of a pod reach each other: networks that keep services apart cannot be made."""
        of = {name: self._networks(service) for name, service in services.items()}
        for name, networks in of.items():
            if name != MAIN and not networks & of[MAIN]:
                text = f"shares no network with {MAIN}, but containers of a sandbox always reach each other"
                raise self.refuse(f"services.{name}.networks", text)

    def _networks(self, service: Node) -> set[str]:
        node = service.get("networks") or ["default"]
        return {str(name) for name in node}

    def _check_ports(self, services: Mapping[str, Node]) -> None:
        owners: dict[str, str] = {}
        for name, service in services.items():
            for port in {*self._ports(name, service), *(str(one) for one in service.get("expose") or ())}:
                if owners.setdefault(port, name) != name:
                    text = f"port {port} is {owners[port]}'s already; services of a sandbox share one address"
                    raise self.refuse(f"services.{name}.ports", text)

    def _ports(self, name: str, service: Node) -> list[str]:
        """Container ports. Publishing to a host is refused: there is none."""
        found = []
        for port in service.get("ports") or ():
            published = port.get("published") if isinstance(port, Mapping) else ":" in str(port)
            if published:
                text = f"{port} publishes to the host, which a sandbox must not; write the container's port alone"
                raise self.refuse(f"services.{name}.ports", text)
            found.append(str(port.get("target") if isinstance(port, Mapping) else port).partition("/")[0])
        return found

    def _order(self, services: Mapping[str, Node]) -> list[str]:
        graph = {name: set(self._dependencies(name, service)) for name, service in services.items()}
        for name, wanted in graph.items():
            for one in sorted(wanted - services.keys()):
                raise self.refuse(f"services.{name}.depends_on", f"there is no service {one!r}")
        try:
            return list(TopologicalSorter({name: sorted(graph[name]) for name in sorted(graph)}).static_order())
        except CycleError as error:
            raise self.refuse("services", f"depends_on goes round: {' -> '.join(error.args[1])}") from error

    def _dependencies(self, name: str, service: Node) -> dict[str, str]:
        node = service.get("depends_on") or ()
        if not isinstance(node, Mapping):
            return dict.fromkeys((str(one) for one in node), "service_started")
        found = {str(one): str((how or {}).get("condition", "service_started")) for one, how in node.items()}
        for one, condition in found.items():
            if condition not in ("service_started", "service_healthy", "service_completed_successfully"):
                raise self.refuse(f"services.{name}.depends_on.{one}", f"condition {condition!r} does not exist")
        return found

    def _run_once(self, services: Mapping[str, Node]) -> set[str]:
        """Services that others wait for the end of."""
        conditions = [pair for name, service in services.items() for pair in self._dependencies(name, service).items()]
        return {name for name, condition in conditions if condition == "service_completed_successfully"}

    # -- one service

    def _check_keys(self, name: str, service: Node) -> None:
        path = f"services.{name}"
        for key in service:
            if key not in _HONOURED | _NO_EFFECT and not str(key).startswith("x-"):
                raise self.refuse(f"{path}.{key}", "cannot be honoured in a sandbox; remove it")
        if service.get("privileged"):
            raise self.refuse(f"{path}.privileged", "sandboxes are never privileged")
        mode = str(service.get("network_mode") or "bridge")
        if mode not in ("bridge", "default"):
            raise self.refuse(f"{path}.network_mode", f"{mode!r} would leave the sandbox's network")

    def _image(self, name: str, service: Node) -> str:
        if not service.get("image"):
            why = "only main is built from the task; give this service an image that can be pulled"
            raise self.refuse(f"services.{name}.{'build' if 'build' in service else 'image'}", why)
        return str(service["image"])

    def _spec(self, name: str, service: Node, once: bool) -> dict[str, Any]:
        """Fields of a Kubernetes container, and `aliases` and `once`, which `pod_spec` reads."""
        spec: dict[str, Any] = {"resources": self._resources(name, service)}
        env = self._environment(name, service)
        if env:
            spec["env"] = [{"name": key, "value": value} for key, value in env.items()]
        for key, target in (("entrypoint", "command"), ("command", "args")):
            if service.get(key) is not None:
                spec[target] = self._words(f"services.{name}.{key}", service[key])
        if service.get("working_dir"):
            spec["workingDir"] = str(service["working_dir"])
        if service.get("user") is not None:
            spec["securityContext"] = self._user(name, str(service["user"]))
        probe = None if once else self._probe(name, service.get("healthcheck"))
        if probe:
            spec["startupProbe"] = probe
        aliases = self._aliases(name, service)
        if aliases:
            spec["aliases"] = aliases
        if once:
            spec["once"] = True
        return spec

    def _words(self, path: str, node: Any) -> list[str]:
        if isinstance(node, list):
            return [str(word) for word in node]
        try:
            return shlex.split(str(node))
        except ValueError as error:
            raise self.refuse(path, f"cannot be read: {error}") from error

    def _environment(self, name: str, service: Node) -> dict[str, str]:
        node = service.get("environment") or {}
        pairs = node.items() if isinstance(node, Mapping) else (str(item).partition("=")[::2] for item in node)
        listed = {} if isinstance(node, Mapping) else {str(item) for item in node if "=" not in str(item)}
        found: dict[str, str] = {}
        for key, value in pairs:
            if value is None or key in listed:
                raise self.refuse(f"services.{name}.environment.{key}", "takes its value from the host; write it out")
            found[str(key)] = _scalar(value)
        return found

    def _user(self, name: str, user: str) -> dict[str, int]:
        uid, _, gid = user.partition(":")
        if not uid.isdecimal() or (gid and not gid.isdecimal()):
            text = f"{user!r}: a cluster knows no names of an image's users; give their numbers"
            raise self.refuse(f"services.{name}.user", text)
        return {"runAsUser": int(uid), **({"runAsGroup": int(gid)} if gid else {})}

    def _aliases(self, name: str, service: Node) -> list[str]:
        found = {str(service[key]) for key in ("hostname", "container_name") if service.get(key)}
        networks = service.get("networks")
        if isinstance(networks, Mapping):
            found |= {str(alias) for one in networks.values() for alias in (one or {}).get("aliases") or ()}
        for alias in found:
            if not _ALIAS.fullmatch(alias):
                raise self.refuse(f"services.{name}", f"{alias!r} is no host name (lower-case letters, digits, '-')")
        return sorted(found - {name})

    def _resources(self, name: str, service: Node) -> dict[str, Any]:
        limits = ((service.get("deploy") or {}).get("resources") or {}).get("limits") or {}
        memory = service.get("mem_limit") or limits.get("memory")
        memory_mb = _DEFAULT_MEMORY_MB
        if memory is not None:
            memory_mb = max(1, self._bytes(f"services.{name}.mem_limit", memory) // _MEBIBYTE)
        cpus = service.get("cpus") or limits.get("cpus") or _DEFAULT_CPUS
        try:
            millis = max(1, round(1000 * float(cpus)))
        except ValueError as error:
            raise self.refuse(f"services.{name}.cpus", f"{cpus!r} is no number") from error
        storage = {"ephemeral-storage": f"{_STORAGE_MB}Mi"}
        return {
            "limits": {"cpu": f"{millis}m", "memory": f"{memory_mb}Mi", **storage},
            "requests": {
                "cpu": f"{min(millis, 10)}m",
                "memory": f"{min(memory_mb, 64)}Mi",
                "ephemeral-storage": "16Mi",
            },
        }

    def _bytes(self, path: str, value: Any) -> int:
        match = _SIZE.fullmatch(str(value).strip())
        if match is None:
            raise self.refuse(path, f"{value!r} is no size (512m, 2g)")
        return int(float(match.group(1)) * _UNITS[match.group(2).lower()])

    # -- health

    def _probe(self, name: str, node: Any) -> dict[str, Any] | None:
        """Nothing starts after a service, main included, before its check has passed."""
        if not node or node.get("disable"):
            return None
        path = f"services.{name}.healthcheck"
        command = self._test(f"{path}.test", node.get("test"))
        if command is None:
            return None
        interval = self._seconds(f"{path}.interval", node.get("interval"), _DEFAULT_INTERVAL_S)
        often = self._seconds(f"{path}.start_interval", node.get("start_interval"), _LONGEST_PERIOD_S)
        start = self._seconds(f"{path}.start_period", node.get("start_period"), 0.0)
        period = max(1, round(min(interval, often)))
        patience = start + interval * int(node.get("retries") or _DEFAULT_RETRIES)
        return {
            "exec": {"command": command},
            "periodSeconds": period,
            "timeoutSeconds": max(1, round(self._seconds(f"{path}.timeout", node.get("timeout"), _DEFAULT_TIMEOUT_S))),
            "failureThreshold": max(1, math.ceil(patience / period)),
        }

    def _test(self, path: str, node: Any) -> list[str] | None:
        if isinstance(node, str):
            return ["/bin/sh", "-c", node]
        words = [str(word) for word in node or ()]
        if words[:1] == ["NONE"]:
            return None
        if words[:1] == ["CMD-SHELL"] and len(words) == 2:
            return ["/bin/sh", "-c", words[1]]
        if words[:1] == ["CMD"] and len(words) > 1:
            return words[1:]
        raise self.refuse(path, "must be a string, [CMD, ...], [CMD-SHELL, ...] or [NONE]")

    def _seconds(self, path: str, node: Any, otherwise: float) -> float:
        if node is None:
            return otherwise
        text = str(node).strip()
        match = _DURATION.fullmatch(text)
        if not text or match is None:
            raise self.refuse(path, f"{text!r} is no duration (1m30s)")
        hours, minutes, seconds, millis, micros = (float(part or 0) for part in match.groups())
        return 3600 * hours + 60 * minutes + seconds + millis / 1e3 + micros / 1e6

    # -- volumes

    def _mounts(self, name: str, service: Node) -> list[dict[str, Any]]:
        found = [self._mount(name, one) for one in service.get("volumes") or ()]
        tmpfs = service.get("tmpfs") or ()
        for one in [tmpfs] if isinstance(tmpfs, str) else tmpfs:
            found.append(_memory(name, str(one).partition(":")[0]))
        if service.get("shm_size") is not None:
            size = self._bytes(f"services.{name}.shm_size", service["shm_size"])
            found.append({**_memory(name, "/dev/shm"), "size_mb": max(1, size // _MEBIBYTE)})
        return found

    def _mount(self, name: str, node: Any) -> dict[str, Any]:
        path = f"services.{name}.volumes"
        if isinstance(node, Mapping):
            kind, source, target = str(node.get("type")), str(node.get("source", "")), str(node.get("target", ""))
            read_only = bool(node.get("read_only"))
            if kind == "tmpfs" and target:
                return _memory(name, target)
        else:
            parts = str(node).split(":")
            source, target, *flags = parts if len(parts) > 1 else ["", parts[0]]
            kind, read_only = "volume", "ro" in flags[:1]
        if kind != "volume" or source.startswith((".", "/", "~")) or "\\" in source:
            raise self.refuse(path, f"{node!r} mounts a folder of the host, which a sandbox has none of; use a COPY")
        if not target.startswith("/"):
            raise self.refuse(path, f"{node!r}: the path in the container must be absolute")
        volume = _volume_name(source or f"{name}-{target}")
        return {"name": volume, "container": name, "path": target, **({"read_only": True} if read_only else {})}


def _memory(container: str, path: str) -> dict[str, Any]:
    return {"name": _volume_name(f"{container}-{path}"), "container": container, "path": path, "medium": "Memory"}


def _volume_name(text: str) -> str:
    return f"shared-{re.sub(r'[^a-z0-9]+', '-', text.lower()).strip('-')}"[:63].rstrip("-")


def _scalar(value: Any) -> str:
    """As YAML writes it: compose hands numbers and booleans on as text."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def find(files: Mapping[str, bytes], variables: Mapping[str, str]) -> Compose | None:
    """The compose file among a task's files, read; None when there is none."""
    for where in FILES:
        if where in files:
            try:
                return parse(files[where].decode(), where, variables)
            except UnicodeDecodeError as error:
                raise InvalidSpec(f"{where} is not UTF-8: {error}", field=where) from error
    return None
