"""Sandboxes of a release for tests: claimed by gRPC as a worker does, used through the CLI."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from release import Connected, Release, run

from longshore.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from longshore_cli.connect import Start, Target, connected

SCHEDULER = "sandbox-scheduler"
AGENT_PORT = 7409
CONNECT_TIMEOUT_S = 3.0
_POD_IP = "jsonpath={.items[0].status.podIP}"

PROBE = Path(__file__).with_name("inside_probe.py").read_text()


@dataclass(frozen=True)
class Door:
    """A port that a sandbox may try."""

    name: str
    host: str
    port: int
    udp: bool = False

    def opens_from_here(self) -> bool:
        """Whether this node, which no policy keeps out, gets through: a closed door proves nothing."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM if self.udp else socket.SOCK_STREAM) as probe:
            probe.settimeout(CONNECT_TIMEOUT_S)
            try:
                probe.connect((self.host, self.port))
            except OSError:
                return False
            return True


@contextlib.contextmanager
def claimed(cli: Connected, count: int = 1) -> Iterator[list[str]]:
    """Ids of fresh sandboxes of some task, deleted at the end."""
    task = cli.json("task", "list")[0]["digest"]
    ids = asyncio.run(_claim(cli, task, count))
    try:
        yield ids
    finally:
        asyncio.run(_delete(cli, ids))


async def _claim(cli: Connected, task: str, count: int) -> list[str]:
    async with connected(Target(cli.home, None), [SCHEDULER], start=Start.NEVER) as channels:
        stub: Any = sandbox_pb2_grpc.SandboxServiceStub(channels[SCHEDULER])
        asked = sandbox_pb2.ClaimSandboxRequest(task_digest=task, ttl_s=300, run_id="release-test")
        answers = await asyncio.gather(*(stub.ClaimSandbox(asked) for _ in range(count)))
        return [answer.sandbox.sandbox_id for answer in answers]


async def _delete(cli: Connected, ids: Sequence[str]) -> None:
    async with connected(Target(cli.home, None), [SCHEDULER], start=Start.NEVER) as channels:
        stub: Any = sandbox_pb2_grpc.SandboxServiceStub(channels[SCHEDULER])
        for one in ids:
            await stub.DeleteSandbox(sandbox_pb2.DeleteSandboxRequest(sandbox_id=one))


def answers_inside(cli: Connected, sandbox_id: str, doors: Sequence[Door]) -> dict[str, bool]:
    """Which doors open from inside the sandbox."""
    asked = json.dumps([asdict(door) for door in doors])
    found: dict[str, bool] = json.loads(
        cli("sandbox", "exec", sandbox_id, "--", "python3", "-c", PROBE, str(CONNECT_TIMEOUT_S), stdin=asked)
    )
    return found


def doors_of(release: Release, neighbour: str) -> dict[str, list[Door]]:
    """What a sandbox must reach ("open") and must not ("closed"); `neighbour` is another sandbox's id."""

    def pod(component: str) -> str:
        chosen = f"{release.selector},app.kubernetes.io/component={component}"
        return str(release.get("pods", "-l", chosen)[0]["status"]["podIP"])

    def service(component: str) -> str:
        chosen = f"{release.selector},app.kubernetes.io/component={component}"
        found = [one["spec"]["clusterIP"] for one in release.get("services", "-l", chosen)]
        return next(str(address) for address in found if address != "None")

    def address(kind: str, name: str, namespace: str, path: str) -> str:
        return run("kubectl", "get", kind, name, "-n", namespace, "-o", f"jsonpath={{{path}}}")

    gateway, engine = pod("inference-gateway"), pod("engine-default")
    node = run("kubectl", "get", "nodes", "-o", "jsonpath={.items[0].status.addresses[0].address}")
    other = run("kubectl", "get", "pods", "-A", "--field-selector", f"metadata.name={neighbour}", "-o", _POD_IP)
    dns = address("service", "kube-dns", "kube-system", ".spec.clusterIP")
    return {
        "open": [Door("gateway data", service("inference-gateway"), 7403)],
        "closed": [
            Door("gateway gRPC", gateway, 7404),
            Door("gateway metrics", gateway, 9090),
            Door("engine vLLM", engine, 8000),
            Door("engine host", engine, 7410),
            Door("postgres", pod("postgres"), 5432),
            Door("redis", pod("redis"), 6379),
            Door("controller REST", pod("controller"), 7400),
            Door("controller gRPC", pod("controller"), 7408),
            Door("API server", address("service", "kubernetes", "default", ".spec.clusterIP"), 443),
            Door("kubelet", node, 10250),
            Door("another sandbox", other, AGENT_PORT),
            Door("DNS over TCP", dns, 53),
            Door("DNS", dns, 53, udp=True),
        ],
    }
