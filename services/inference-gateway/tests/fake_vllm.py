"""A stand-in for vLLM's process: waits for its order as engine_process does, then serves what FakeEngine serves.

`python fake_vllm.py FILE`. A model folder with a file `fail` makes it end while starting. In FILE's folder, it writes a
line per engine to `started`, and while there is `refuse-adapters` it loads none.
"""

import asyncio
import hmac
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from aiohttp import web
from gateway_fakes import FakeEngine

from longshore_inference_gateway.engine_door import KEY_VARIABLE, OPEN


def _order(file: Path) -> dict[str, str]:
    while not file.exists():
        time.sleep(0.01)
    arguments = json.loads(file.read_text())
    file.unlink()
    return {
        name: value for name, value in zip(arguments, [*arguments[1:], ""], strict=True) if not value.startswith("--")
    }


@web.middleware
async def _guard(request: web.Request, handler):
    key = os.environ.get(KEY_VARIABLE, "")
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    if request.path not in OPEN and key and not hmac.compare_digest(given, key):
        return web.json_response({"error": "Unauthorized"}, status=401)
    return await handler(request)


async def _serve(order: dict[str, str], folder: Path) -> None:
    engine = FakeEngine(order["--served-model-name"], context_length=int(order.get("--max-model-len", 77)))

    @web.middleware
    async def refuse_adapters(request: web.Request, handler):
        engine.fail_load = (folder / "refuse-adapters").exists()
        return await handler(request)

    await engine.start(order["--host"], int(order["--port"]), middlewares=[_guard, refuse_adapters])
    await asyncio.Event().wait()


def main() -> None:
    file = Path(sys.argv[1])
    print("fake vLLM: imports done", flush=True)
    order = _order(file)
    with (file.parent / "started").open("a") as log:
        log.write(f"{os.getpid()} {order['--served-model-name']}\n")
    if (Path(order["--model"]) / "fail").exists():
        print("ValueError: KV cache does not fit", file=sys.stderr)
        sys.exit(3)
    asyncio.run(_serve(order, file.parent))


if __name__ == "__main__":
    main()
