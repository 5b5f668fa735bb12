"""vLLM's API server as a child that starts quickly: `python -m longshore_inference_gateway.engine_process FILE`.

It imports vLLM first and then waits for FILE, a JSON list of vLLM's own arguments: a process started ahead of time is
ready seconds after it learns what to serve.

On the CPU, vLLM starts two more processes (engine core, worker) and asks a third about the model; each imports torch
and vLLM again, one after the other. Here those are forked from this one, with everything imported once. The CPU
platform insists on "spawn", so its choice is put back to vLLM's own default, "fork". Other platforms stay as they are.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_POLL_S = 0.05


def main() -> None:
    """Runs the server until it ends."""
    # Importing makes millions of objects and no garbage.
    gc.disable()
    from vllm.entrypoints.launchers.api_server import entry
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        _preload()
        _fork_children()
        _inspect_models_here()
    gc.enable()
    # What is imported stays: forked children share its pages instead of copying them at their first collection.
    gc.freeze()
    sys.argv = [sys.argv[0], *_wait_for_arguments(Path(sys.argv[1]))]
    entry.main()


def _wait_for_arguments(path: Path) -> list[str]:
    while not path.exists():
        time.sleep(_POLL_S)
    arguments = json.loads(path.read_text())
    path.unlink()
    return [str(argument) for argument in arguments]


def _preload() -> None:
    import vllm.model_executor.models.qwen2
    import vllm.v1.engine.async_llm
    import vllm.v1.engine.core
    import vllm.v1.executor.multiproc_executor
    import vllm.v1.worker.cpu_worker  # noqa: F401


def _fork_children() -> None:
    from vllm.platforms.cpu import CpuPlatform

    original = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: type, vllm_config: Any) -> None:
        original(cls, vllm_config)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


def _inspect_models_here() -> None:
    # The subprocess only keeps CUDA uninitialised, and there is none.
    from vllm.model_executor.models import registry

    def run_here(function: Callable[[], Any]) -> Any:
        return function()

    registry._run_in_subprocess = run_here


if __name__ == "__main__":
    main()
