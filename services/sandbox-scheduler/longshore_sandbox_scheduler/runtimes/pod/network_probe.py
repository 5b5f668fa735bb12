"""Proves that a cluster enforces NetworkPolicy: pods under policies of their own try what they may and may not reach.

Two listeners and two dialers. `held` is under a policy like a sandbox's: it may dial `target` only. `stranger` may dial
anything, but only `held` is let in to `target`. What `stranger` reaches shows that what `held` is refused was there.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from longshore_common.errors import LongshoreError, Unavailable
from longshore_common.log import get_logger
from longshore_sandbox_scheduler.runtimes.pod.cluster_objects import ClusterObjects
from longshore_sandbox_scheduler.runtimes.pod.network_policy import ClusterAddresses, Object
from longshore_sandbox_scheduler.runtimes.pod.placement import Placement

log = get_logger(__name__)

PROBE_COMPONENT = "network-probe"
PROBE_ID = "longshore.dev/probe"
PROBE_ROLE = "longshore.dev/probe-role"
TARGET, OTHER, HELD, STRANGER = "target", "other", "held", "stranger"
_API_SERVER = "the API server"
_DNS_PORT = 53
_POLL_S = 0.25
_NO_USER_NEEDED = 65532


@dataclass(frozen=True)
class ProbeOptions:
    """How the probe runs; times in seconds."""

    image: str = ""
    """The agent's image."""
    agent_port: int = 7409
    settle_s: float = 30.0
    """Longest time after a pod's start until its policies must hold."""
    start_s: float = 60.0
    """Longest time for the probe's pods to start."""
    keep_s: float = 6 * 3600.0
    """How long a passed probe is trusted, also by other replicas; 0: never."""


@dataclass(frozen=True)
class Check:
    """One thing tried: `wanted` and `found` say "open" or "closed"; wanted is empty for mere information."""

    dialer: str
    what: str
    target: str
    wanted: str
    found: str

    @property
    def holds(self) -> bool:
        return not self.wanted or self.wanted == self.found


@dataclass(frozen=True)
class ProbeResult:
    """Whether policies are enforced; late_s: how long after a pod's start the last forbidden thing still worked."""

    enforced: bool
    late_s: float = 0.0
    checks: tuple[Check, ...] = ()
    problem: str = ""
    """Why the probe could not tell."""

    @property
    def details(self) -> str:
        """In words, what was wrong; empty when all was as wanted."""
        wrong = [f"{one.dialer} -> {one.what} ({one.target}) {one.found}" for one in self.checks if not one.holds]
        return "; ".join([self.problem, *wrong] if self.problem else wrong)

    @property
    def canaries(self) -> tuple[str, ...]:
        """API server addresses that a pod without restriction reached, and one under policy did not."""
        return tuple(
            one.target for one in self.checks if (one.dialer, one.what, one.found) == (STRANGER, _API_SERVER, "open")
        )

    def to_json(self) -> str:
        """For the release's ConfigMap."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> ProbeResult:
        """Raises ValueError for what `to_json` did not write."""
        try:
            raw = json.loads(text)
            checks = tuple(Check(**one) for one in raw["checks"])
            return ProbeResult(bool(raw["enforced"]), float(raw["late_s"]), checks, str(raw["problem"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"no probe result: {error!r}") from error


@dataclass(frozen=True)
class Target:
    """Something a dialer tries; wanted as in Check."""

    what: str
    address: str
    wanted: str = ""

    @property
    def argument(self) -> str:
        """For `longshore-agent probe`."""
        return f"{self.wanted}={self.address}" if self.wanted else self.address


class NetworkProbe:
    """Runs the probe once per call."""

    def __init__(self, api: ClusterObjects, place: Placement, options: ProbeOptions) -> None:
        self._api = api
        self._place = place
        self._options = options

    async def run(self, cluster: ClusterAddresses, *, apply_policies: bool = True) -> ProbeResult:
        """Probes; never raises for what the cluster does, and leaves nothing behind.

        apply_policies: False shows what a cluster without enforcement looks like.
        """
        if not self._options.image:
            return ProbeResult(False, problem="no agent image is set to probe with")
        probe_id = secrets.token_hex(4)
        try:
            async with asyncio.timeout(2 * self._options.start_s + 2 * self._options.settle_s):
                return await self._run(probe_id, cluster, apply_policies)
        except TimeoutError:
            return ProbeResult(False, problem="the probe did not end in time")
        except LongshoreError as error:
            return ProbeResult(False, problem=f"the probe could not run: {error.message}")
        finally:
            await asyncio.shield(self._remove(probe_id))

    async def _run(self, probe_id: str, cluster: ClusterAddresses, apply_policies: bool) -> ProbeResult:
        if apply_policies:
            for policy in probe_policies(self._place, probe_id, self._options.agent_port):
                await self._api.create(policy)
        for role in (TARGET, OTHER):
            await self._api.create(listener_pod(self._place, probe_id, role, self._options))
        pods = await self._until(probe_id, (TARGET, OTHER), ("Running",))
        addresses = {role: pod_target(pod, self._options.agent_port) for role, pod in pods.items()}
        plan = dial_plan(addresses, cluster)
        for role, targets in plan.items():
            await self._api.create(dialer_pod(self._place, probe_id, role, targets, self._options))
        await self._until(probe_id, tuple(plan), ("Succeeded", "Failed"))
        tries = {role: await self._api.log("pods", pod_name(probe_id, role)) for role in plan}
        return judge(plan, tries)

    async def _until(
        self, probe_id: str, roles: Sequence[str], phases: Sequence[str]
    ) -> Mapping[str, Mapping[str, Any]]:
        """The pods of these roles once in such a phase. Raises Unavailable when one never gets there."""
        deadline = time.monotonic() + self._options.start_s + self._options.settle_s
        while True:
            pods = await self._api.list("pods", self._place.namespace, f"{PROBE_ID}={probe_id}")
            by_role = {pod["metadata"]["labels"][PROBE_ROLE]: pod for pod in pods}
            states = {role: _phase(by_role.get(role)) for role in roles}
            if all(state in phases for state in states.values()):
                return {role: by_role[role] for role in roles}
            if "Failed" in states.values() or time.monotonic() > deadline:
                raise Unavailable(
                    f"probe pods are not {' or '.join(phases)}: {_states(by_role, roles)}", retryable=False
                )
            await asyncio.sleep(_POLL_S)

    async def _remove(self, probe_id: str) -> None:
        try:
            for kind in ("pods", "networkpolicies"):
                for one in await self._api.list(kind, self._place.namespace, f"{PROBE_ID}={probe_id}"):
                    await self._api.delete(kind, one["metadata"]["name"], grace_s=0)
        except LongshoreError as error:
            log.warning("network probe left objects for the sweep", probe=probe_id, error=error.message)


def dial_plan(listeners: Mapping[str, str], cluster: ClusterAddresses) -> Mapping[str, tuple[Target, ...]]:
    """Who tries what. listeners: role -> host:port."""
    node = [("a node", join(address, cluster.kubelet_port)) for address in cluster.nodes[:1]]
    servers = [(_API_SERVER, join(*place)) for place in cluster.api_servers]
    dns = [("DNS", join(address, _DNS_PORT)) for address in cluster.dns]
    inner = list(dict.fromkeys([*servers, *node, *dns]))
    held = [Target("the allowed pod", listeners[TARGET], "open"), Target("another pod", listeners[OTHER], "closed")]
    stranger = [
        Target("a pod's agent port, as no caller", listeners[TARGET], "closed"),
        Target("another pod", listeners[OTHER], "open"),
    ]
    return {
        HELD: (*held, *(Target(what, address, "closed") for what, address in inner)),
        STRANGER: (*stranger, *(Target(what, address) for what, address in inner)),
    }


def judge(plan: Mapping[str, Sequence[Target]], outputs: Mapping[str, str]) -> ProbeResult:
    """From each dialer's JSON lines: every try of every target, in order of time; the last one counts."""
    checks: list[Check] = []
    late_ms = 0.0
    for role, targets in plan.items():
        tries = parse_tries(outputs.get(role, ""))
        for target in targets:
            own = tries.get(target.address, [])
            if not own:
                problem = f"{role} did not say whether it reached {target.what} ({target.address})"
                return ProbeResult(False, problem=problem)
            found = "open" if own[-1][1] else "closed"
            checks.append(Check(role, target.what, target.address, target.wanted, found))
            if target.wanted == "closed":
                late_ms = max([late_ms, *(at for at, was_open in own if was_open)])
    return ProbeResult(all(one.holds for one in checks), late_ms / 1000, tuple(checks))


def parse_tries(output: str) -> dict[str, list[tuple[float, bool]]]:
    """Target -> (milliseconds since the dialer's start, open); lines that are no JSON objects are left out."""
    tries: dict[str, list[tuple[float, bool]]] = {}
    for line in output.splitlines():
        try:
            raw = json.loads(line)
            tries.setdefault(str(raw["target"]), []).append((float(raw["at_ms"]), bool(raw["open"])))
        except (ValueError, KeyError, TypeError):
            continue
    return tries


def probe_policies(place: Placement, probe_id: str, port: int) -> Sequence[Object]:
    """Policies of the four roles."""

    def pods(role: str) -> Object:
        return {"podSelector": {"matchLabels": {PROBE_ID: probe_id, PROBE_ROLE: role}}}

    ports = [{"protocol": "TCP", "port": port}]
    rules: Mapping[str, tuple[list[Object], list[Object]]] = {
        TARGET: ([{"from": [pods(HELD)], "ports": ports}], []),
        OTHER: ([{"from": [pods(HELD), pods(STRANGER)], "ports": ports}], []),
        HELD: ([], [{"to": [pods(TARGET)], "ports": ports}]),
        STRANGER: ([], [{}]),
    }
    return [
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": _metadata(place, probe_id, role),
            "spec": {**pods(role), "policyTypes": ["Ingress", "Egress"], "ingress": ingress, "egress": egress},
        }
        for role, (ingress, egress) in rules.items()
    ]


def listener_pod(place: Placement, probe_id: str, role: str, options: ProbeOptions) -> Object:
    """An agent that nobody holds a token for: it only listens."""
    env = {
        "LONGSHORE_AGENT_PUBLIC_KEY": base64.b64encode(secrets.token_bytes(32)).decode(),
        "LONGSHORE_AGENT_SANDBOX_ID": pod_name(probe_id, role),
        "LONGSHORE_AGENT_INSTANCE": probe_id,
        "LONGSHORE_AGENT_LISTEN": f":{options.agent_port}",
    }
    return _pod(place, probe_id, role, options, ["serve"], env)


def dialer_pod(place: Placement, probe_id: str, role: str, targets: Iterable[Target], options: ProbeOptions) -> Object:
    """A pod that tries its targets until all are as wanted, or settle_s has passed, and says so."""
    wait = ["--until-expected", f"{options.settle_s:g}"]
    return _pod(place, probe_id, role, options, ["probe", "--json", *wait, *(one.argument for one in targets)], {})


def pod_target(pod: Mapping[str, Any], port: int) -> str:
    """host:port of a running listener."""
    return join(pod["status"]["podIP"], port)


def join(host: str, port: int) -> str:
    """host:port, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def pod_name(probe_id: str, role: str) -> str:
    """Name of a probe's pod or policy."""
    return f"longshore-probe-{probe_id}-{role}"


def _metadata(place: Placement, probe_id: str, role: str) -> Object:
    return {
        "name": pod_name(probe_id, role),
        "namespace": place.namespace,
        "labels": {**place.labels(PROBE_COMPONENT), PROBE_ID: probe_id, PROBE_ROLE: role},
        "ownerReferences": [dict(place.owner)],
    }


def _pod(
    place: Placement, probe_id: str, role: str, options: ProbeOptions, arguments: Sequence[str], env: Mapping[str, str]
) -> Object:
    container: Object = {
        "name": "probe",
        "image": options.image,
        "args": list(arguments),
        "env": [{"name": name, "value": value} for name, value in env.items()],
        "resources": {
            "requests": {"cpu": "10m", "memory": "32Mi"},
            "limits": {"cpu": "250m", "memory": "128Mi", "ephemeral-storage": "16Mi"},
        },
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(place, probe_id, role),
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": int(2 * (options.start_s + options.settle_s)) + 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": _NO_USER_NEEDED,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
        },
    }


def _phase(pod: Mapping[str, Any] | None) -> str:
    return str((pod or {}).get("status", {}).get("phase", "absent"))


def _states(by_role: Mapping[str, Mapping[str, Any]], roles: Sequence[str]) -> str:
    return ", ".join(f"{role}: {_phase(by_role.get(role))}{_why(by_role.get(role))}" for role in roles)


def _why(pod: Mapping[str, Any] | None) -> str:
    statuses = (pod or {}).get("status", {}).get("containerStatuses") or ()
    for status in statuses:
        for state in (status.get("state") or {}).values():
            if state.get("reason"):
                return f" ({state['reason']}: {state.get('message', '')[:200]})"
    return ""
