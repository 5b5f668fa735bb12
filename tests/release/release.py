"""One release on the test cluster: helm, kubectl, and the CLI connected to it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "deploy/helm/longshore"
CPU_VALUES = CHART / "values-cpu.yaml"
COMPONENTS = (
    "controller",
    "task-catalog",
    "sandbox-scheduler",
    "inference-gateway",
    "reward-verifier",
    "trajectory-store",
    "rollout-worker",
)
LONGSHORE = str(Path(sys.executable).with_name("longshore"))


class Failed(AssertionError):
    """A command that ended otherwise than it should; its output is the message."""


def run(*argv: str, timeout_s: float = 120, stdin: str | None = None, **variables: str) -> str:
    """Stdout of a command that must end with 0; its stderr goes on to ours."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LONGSHORE_")}
    done = subprocess.run(
        argv, cwd=REPOSITORY, env=kept | variables, input=stdin, capture_output=True, text=True, timeout=timeout_s
    )
    sys.stderr.write(done.stderr)
    if done.returncode:
        raise Failed(f"{' '.join(argv)} ended with {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def until(look: Callable[[], Any], what: str, within_s: float = 120) -> Any:
    """The first true value that `look` finds; the bound is generous."""
    deadline = time.monotonic() + within_s
    while not (found := look()):
        if time.monotonic() > deadline:
            raise Failed(f"not within {within_s:g} s: {what}")
        time.sleep(0.5)
    return found


@dataclass(frozen=True)
class Release:
    """A helm release in its namespace."""

    name: str
    namespace: str

    @property
    def fullname(self) -> str:
        """First part of its objects' names."""
        return self.name if "longshore" in self.name else f"{self.name}-longshore"

    @property
    def service_selector(self) -> str:
        """Of the pods of its services, which an upgrade replaces."""
        services = ",".join(name for name in COMPONENTS)
        return f"{self.selector},app.kubernetes.io/component in ({services})"

    @property
    def selector(self) -> str:
        """Of all objects of this release."""
        return f"app.kubernetes.io/instance={self.name}"

    def kubectl(self, *args: str, timeout_s: float = 60, stdin: str | None = None) -> str:
        """kubectl in the release's namespace."""
        return run("kubectl", "--namespace", self.namespace, *args, timeout_s=timeout_s, stdin=stdin)

    def get(self, kind: str, *args: str) -> list[dict[str, Any]]:
        """Objects of the namespace, of this release unless args select otherwise."""
        found = json.loads(self.kubectl("get", kind, "-o", "json", *(args or ("-l", self.selector))))
        return list(found["items"])

    def secret(self) -> str:
        """The platform's."""
        found = json.loads(self.kubectl("get", "secret", f"{self.fullname}-secret", "-o", "json"))
        return base64.b64decode(found["data"]["secret"]).decode()

    def helm(self, *args: str, timeout_s: float = 900) -> str:
        """helm in the release's namespace."""
        return run("helm", *args, "--namespace", self.namespace, timeout_s=timeout_s)

    def install(self, *args: str) -> None:
        """Installs the chart with the CPU values and waits until all is ready."""
        more = ("--create-namespace", "--values", str(CPU_VALUES), "--wait", "--timeout", "10m", *args)
        self.helm("install", self.name, str(CHART), *more)

    def upgrade(self, *args: str) -> None:
        """Upgrades with the values it has, and args; waits until all is ready."""
        self.helm("upgrade", self.name, str(CHART), "--reuse-values", "--wait", "--timeout", "10m", *args)

    def remove(self) -> None:
        """Uninstalls it and deletes its namespace, volumes too; nothing happens when it is not there."""
        run("helm", "uninstall", self.name, "--namespace", self.namespace, "--ignore-not-found", "--wait")
        run("kubectl", "delete", "namespace", self.namespace, "--ignore-not-found", "--wait=false")

    def pods(self) -> list[dict[str, Any]]:
        """The release's pods that have not ended."""
        return [pod for pod in self.get("pods") if pod["status"].get("phase") not in ("Succeeded", "Failed")]

    def everything(self) -> list[str]:
        """kind/name of all that carries this release's label, in any namespace or none; also sandboxes."""
        listed = run("kubectl", "api-resources", "--verbs=list,delete", "-o", "name").split()
        kinds = [kind for kind in listed if not kind.startswith("events") and "metrics.k8s.io" not in kind]
        names = ("-o", "custom-columns=K:.kind,NS:.metadata.namespace,N:.metadata.name", "--no-headers")
        found: list[str] = []
        for selector in (self.selector, f"longshore.dev/release={self.fullname}"):
            out = run("kubectl", "get", ",".join(kinds), "-A", "-l", selector, "--ignore-not-found", *names)
            found += [" ".join(line.split()) for line in out.splitlines() if line.strip()]
        return sorted(set(found))


@dataclass(frozen=True)
class Connected:
    """The CLI on a home that `longshore connect` keeps connected to a release."""

    home: Path

    def __call__(self, *args: str, timeout_s: float = 300, stdin: str | None = None) -> str:
        """Stdout of a command that must succeed; options go before its `--`."""
        options, rest = (args, ()) if "--" not in args else (args[: args.index("--")], args[args.index("--") :])
        return run(LONGSHORE, *options, "--home", str(self.home), *rest, timeout_s=timeout_s, stdin=stdin)

    def json(self, *args: str, timeout_s: float = 300) -> Any:
        """Its answer as data."""
        return json.loads(self(*args, "-o", "json", timeout_s=timeout_s))


@contextlib.contextmanager
def connected(release: Release, home: Path) -> Iterator[Connected]:
    """`longshore connect` beside us for the length of the block."""
    home.mkdir(parents=True, exist_ok=True)
    argv = [LONGSHORE, "connect", "--namespace", release.namespace, "--release", release.name, "--home", str(home)]
    log = (home / "connect.log").open("w")
    process = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT, cwd=REPOSITORY)

    def ready() -> bool:
        if process.poll() is not None:
            raise Failed(f"longshore connect ended with {process.returncode}: {(home / 'connect.log').read_text()}")
        return (home / "endpoints.json").is_file()

    try:
        until(ready, "longshore connect announces the services", 60)
        yield Connected(home)
    finally:
        process.terminate()
        process.wait(20)
        log.close()


def logs_of(release: Release, lines: int = 40) -> str:
    """The ends of its services' logs, for messages."""
    parts = []
    for component in (*COMPONENTS, "engine-default", "trainer"):
        selector = f"{release.selector},app.kubernetes.io/component={component}"
        with contextlib.suppress(Failed):
            tail = release.kubectl("logs", "-l", selector, f"--tail={lines}", "--prefix", "--all-containers")
            parts.append(f"--- {component}\n{tail}")
    return "\n".join(parts)
