"""`make test-dashboards`: the quick main job on this machine, scraped by a real Prometheus, and every question asked.

Prometheus scrapes what a cluster's does: the services' page, the trainer's while its job runs, each engine's own. Then
`tools/check_dashboards.py` asks it all expressions. Exit status: that of the check; 2 when something did not run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from prometheus_server import SCRAPE_S, NotRun, base_configuration, check, check_rules, free_port, prometheus

LONGSHORE = Path(sys.executable).with_name("longshore")
_DEMO_S = 1800


def configuration(services: str, trainer: str, engines: Path) -> dict[str, Any]:
    """Of Prometheus: jobs as the chart's monitors name them."""
    return base_configuration() | {
        "scrape_configs": [
            {"job_name": "services", "static_configs": [{"targets": [services]}]},
            {"job_name": "trainer", "static_configs": [{"targets": [trainer]}]},
            {"job_name": "engines", "file_sd_configs": [{"files": [str(engines)], "refresh_interval": "2s"}]},
        ],
    }


def engine_targets(home: Path) -> list[str]:
    """host:port of each engine that the running home's gateway knows."""
    from longshore.gateway.v1 import gateway_pb2, gateway_pb2_grpc
    from longshore_cli.local.home import Home
    from longshore_common.errors import LongshoreError
    from longshore_common.grpc_client import open_channel

    place = Home(home)
    endpoints = place.endpoints()
    if endpoints is None or "inference-gateway" not in endpoints.grpc:
        return []

    async def ask() -> list[str]:
        async with open_channel(endpoints.grpc["inference-gateway"], place.secret(), timeout_s=5) as channel:
            stub = gateway_pb2_grpc.GatewayServiceStub(channel)
            found = await stub.ListEngines(gateway_pb2.ListEnginesRequest())
            return [engine.address for engine in found.engines if engine.address]

    try:
        return asyncio.run(ask())
    except LongshoreError:
        return []


def run_demo(home: Path, services: str, trainer: str, engines: Path, log: Path) -> None:
    """The quick main job to its end; keeps the engines' targets up to date. Raises NotRun."""
    argv = [str(LONGSHORE), "demo", "--quick", "--home", str(home), "--metrics", services]
    environment = os.environ | {"LONGSHORE_TRAINER_METRICS_ADDRESS": trainer}
    deadline = time.monotonic() + _DEMO_S
    with log.open("w") as file, subprocess.Popen(argv, env=environment, stdout=file, stderr=file) as process:
        try:
            while process.poll() is None:
                if time.monotonic() > deadline:
                    raise NotRun(f"the demo did not end within {_DEMO_S} s; see {log}")
                write_targets(engines, engine_targets(home))
                time.sleep(SCRAPE_S)
        finally:
            process.terminate()
    if process.returncode != 0:
        raise NotRun(f"the demo ended with {process.returncode}:\n{log.read_text()[-3000:]}")


def write_targets(file: Path, addresses: list[str]) -> None:
    """For Prometheus, which reads the file whenever it changes."""
    text = json.dumps([{"targets": sorted(set(addresses))}])
    if not file.is_file() or file.read_text() != text:
        fresh = file.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(file)


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, help="keep the home here; without it one is made and removed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="longshore-dashboards-") as name:
        folder = Path(name)
        home = (options.home or folder / "home").absolute()
        services, trainer = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        engines = folder / "engines.json"
        write_targets(engines, [])
        try:
            check_rules()
            started = time.monotonic()
            with prometheus(folder, configuration(services, trainer, engines)) as url:
                run_demo(home, services, trainer, engines, folder / "demo.log")
                return check(url, time.monotonic() - started)
        except NotRun as error:
            print(f"error: {error}", file=sys.stderr)
            return 2


if __name__ == "__main__":
    raise SystemExit(main())
