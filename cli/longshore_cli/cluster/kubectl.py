"""kubectl, as the user has set it up: its credentials, contexts and plugins are not repeated here."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import dataclass
from typing import Any

from longshore_cli.errors import CliError

_TIMEOUT_S = 30.0


class KubectlError(CliError):
    """kubectl refused; `reason` is its last line."""

    def __init__(self, command: str, reason: str) -> None:
        super().__init__(f"kubectl {command}: {reason}")
        self.reason = reason

    @property
    def absent(self) -> bool:
        """The object is not there."""
        return "(NotFound)" in self.reason

    @property
    def forbidden(self) -> bool:
        """The user may not."""
        return "(Forbidden)" in self.reason


@dataclass(frozen=True)
class Kubectl:
    """Which cluster, as whom, in which namespace."""

    namespace: str
    kubeconfig: str = ""
    context: str = ""

    def argv(self, *arguments: str) -> list[str]:
        """A command line. Raises CliError when there is no kubectl."""
        program = shutil.which("kubectl")
        if program is None:
            raise CliError("kubectl is not on the PATH: install it, and check `kubectl get pods` with your cluster")
        chosen = [f"--namespace={self.namespace}"]
        if self.kubeconfig:
            chosen.append(f"--kubeconfig={self.kubeconfig}")
        if self.context:
            chosen.append(f"--context={self.context}")
        return [program, *chosen, *arguments]

    async def get(self, *what: str) -> dict[str, Any]:
        """`kubectl get WHAT -o json`.

        Raises:
            CliError: no kubectl, or an answer that is no JSON.
            KubectlError: what kubectl said.
        """
        command = ("get", *what)
        process = await asyncio.create_subprocess_exec(
            *self.argv(*command, "-o", "json", f"--request-timeout={_TIMEOUT_S:.0f}s"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        if process.returncode:
            lines = err.decode(errors="replace").strip().splitlines()
            raise KubectlError(" ".join(command), lines[-1] if lines else f"ended with {process.returncode}")
        try:
            value = json.loads(out)
        except ValueError as error:
            raise CliError(f"kubectl {' '.join(command)} answered with no JSON: {out[:100]!r}") from error
        return dict(value)
