"""Stands for kubectl: answers `get` from a folder of files, and forwards ports to addresses that are named there.

FOLDER/services.json, all.json, deployment.json, secret.json: answers; absent: NotFound. FOLDER/refused: those that are
answered with Forbidden. FOLDER/upstream.json: port of the release to host:port. FOLDER/pids gets a line per forward.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

FOLDER = Path(os.environ["FAKE_KUBECTL"])


def fail(message: str) -> int:
    print(message, file=sys.stderr)
    return 1


def get(words: list[str]) -> int:
    kind = "all" if "--all-namespaces" in words else words[1].rstrip("s") + ("s" if "-l" in words else "")
    refused = FOLDER / "refused"
    if refused.exists() and kind in refused.read_text().split():
        return fail(f'Error from server (Forbidden): {kind} is forbidden: User "me" cannot get resource')
    file = FOLDER / f"{kind}.json"
    if not file.exists():
        return fail(f'Error from server (NotFound): {kind} "x" not found')
    print(file.read_text())
    return 0


async def forward(words: list[str]) -> int:
    upstream = json.loads((FOLDER / "upstream.json").read_text())
    target, *pairs = [word for word in words[1:] if not word.startswith("-")]
    if str(pairs[0].partition(":")[2]) not in upstream:
        return fail("error: unable to forward port because pod is not running. Current status=Pending")
    with (FOLDER / "pids").open("a") as file:
        file.write(f"{os.getpid()} {target}\n")

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    for pair in pairs:
        here, _, there = pair.partition(":")
        host, _, port = upstream[there].rpartition(":")

        async def serve(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str = host, port: str = port
        ) -> None:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            await asyncio.gather(pipe(reader, far_writer), pipe(far_reader, writer), return_exceptions=True)

        await asyncio.start_server(serve, "127.0.0.1", int(here))
        print(f"Forwarding from 127.0.0.1:{here} -> {there}", flush=True)
    await asyncio.Event().wait()
    return 0


def main() -> int:
    words = [word for word in sys.argv[1:] if not word.startswith(("--namespace", "--kubeconfig", "--context"))]
    return get(words) if words[0] == "get" else asyncio.run(forward(words))


if __name__ == "__main__":
    sys.exit(main())
