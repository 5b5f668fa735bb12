"""kubectl in one namespace of the test cluster, and the pods that its tests start."""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

BUSYBOX, DEBIAN = (f"localhost/longshore/{name}:dev" for name in ("busybox", "debian"))
FOREVER = ("busybox", "sleep", "3600")


class Refused(Exception):
    """What kubectl says on stderr when it fails."""


@dataclass(frozen=True)
class Kubectl:
    """Runs kubectl; each call ends within a minute."""

    kubeconfig: str
    namespace: str = "default"

    def __call__(self, *args: str, stdin: str | None = None) -> str:
        """Its stdout; raises Refused."""
        command = ["kubectl", "--kubeconfig", self.kubeconfig, "--namespace", self.namespace, *args]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise Refused(done.stderr)
        return done.stdout

    def apply(self, *manifests: Mapping[str, Any]) -> None:
        """Makes or changes objects, in this namespace where they name none."""
        self("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}))

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """One object; raises Refused where there is none."""
        found: dict[str, Any] = json.loads(self("get", kind, name, "-o", "json"))
        return found

    def exec(self, pod: str, *command: str) -> str:
        """Stdout of a command in a pod; raises Refused where it does not end with 0."""
        return self("exec", pod, "--", *command)

    def pod_once(self, name: str, wanted: Callable[[dict[str, Any]], bool], what: str, within_s: float = 90) -> Any:
        """The pod, once `wanted` is true of its status."""

        def look() -> dict[str, Any] | None:
            found = self.get("pod", name)
            return found if wanted(found.get("status", {})) else None

        return until(look, f"pod {name} {what}", within_s)

    def running(self, name: str) -> dict[str, Any]:
        """The pod, once it runs."""
        found: dict[str, Any] = self.pod_once(name, lambda status: status.get("phase") == "Running", "runs")
        return found

    def ended(self, name: str) -> dict[str, Any]:
        """Status of a pod of one container, once that has ended."""
        over = ("Succeeded", "Failed")
        found = self.pod_once(name, lambda status: status.get("phase") in over, "has ended", 120)
        return dict(found["status"])


def until(look: Callable[[], Any], what: str, within_s: float = 60) -> Any:
    """The first true value that `look` finds; the bound is generous."""
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.3)
    return found


@contextlib.contextmanager
def fresh_namespace(kubeconfig: str) -> Iterator[Kubectl]:
    """A namespace with Pod Security baseline, as sandboxes have; deleted at the end."""
    name = f"cluster-test-{secrets.token_hex(4)}"
    outside = Kubectl(kubeconfig)
    labels = {"pod-security.kubernetes.io/enforce": "baseline"}
    outside.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    inside = Kubectl(kubeconfig, name)
    try:
        until(lambda: "default" in inside("get", "serviceaccounts", "-o", "name"), f"{name} has its account")
        yield inside
    finally:
        outside("delete", "namespace", name, "--wait=false")


def pod(name: str, command: tuple[str, ...] = FOREVER, image: str = BUSYBOX, **more: Any) -> dict[str, Any]:
    """A pod of one container. more: labels, container (fields of it), anything else is a field of its spec."""
    labels, fields = more.pop("labels", {}), more.pop("container", {})
    container = {"name": "main", "image": image, "imagePullPolicy": "Never", "command": list(command), **fields}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container], **more}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}
