"""A home that stands for a release: its addresses are forwards, its secret is the release's."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass

from longshore_cli.cluster.forwards import forwarded
from longshore_cli.cluster.kubectl import Kubectl
from longshore_cli.cluster.release import Port, find_ports, read_secret
from longshore_cli.errors import CliError
from longshore_cli.local.home import Endpoints, Home
from longshore_cli.local.settings import HOST, free_ports


@dataclass(frozen=True)
class Connection:
    """What is connected: ports of the release with their numbers here."""

    ports: dict[Port, int]
    endpoints: Endpoints


@contextlib.asynccontextmanager
async def connected_release(kubectl: Kubectl, release: str, home: Home, patience_s: float) -> AsyncIterator[Connection]:
    """For the length of the block every command with this home talks to the release.

    Raises:
        CliError: no kubectl, no such release, a secret that cannot be read, a home of something else, a service that
            cannot be reached.
    """
    if home.exists():
        raise CliError(f"{home.path} holds local services' data: choose another --home for a release")
    found = await find_ports(kubectl, release)
    secret = await read_secret(kubectl, found)
    with home.locked(), home.lent_secret(secret):
        ports = dict(zip(found, free_ports(len(found)), strict=True))
        async with forwarded(kubectl, ports, patience_s):
            endpoints = _endpoints(ports)
            with home.announced(endpoints):
                yield Connection(ports, endpoints)


def _endpoints(ports: dict[Port, int]) -> Endpoints:
    def of(kind: str) -> dict[str, str]:
        return {port.component: f"{HOST}:{here}" for port, here in ports.items() if port.kind == kind}

    return Endpoints(os.getpid(), of("grpc"), of("http"), next(iter(of("agent").values()), ""))
