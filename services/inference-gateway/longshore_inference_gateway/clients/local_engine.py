"""Engines as child processes on this machine: vLLM on the CPU."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from longshore_common.child import Child, spawn
from longshore_common.clock import Clock
from longshore_common.errors import Internal, InvalidSpec
from longshore_common.log import get_logger
from longshore_inference_gateway.clients.vllm import VllmClient

log = get_logger(__name__)

_POLL_S = 0.1
_PROGRESS_S = 10.0
_LOG_LINES = 15


@dataclass(frozen=True, slots=True)
class LocalEngineSettings:
    """How vLLM is started here; see settings.py for the meaning of each."""

    log_dir: Path
    work_dir: Path
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_loras: int
    max_cpu_loras: int
    max_lora_rank: int
    kv_cache_gib: int
    threads: int
    extra_arguments: tuple[str, ...]
    start_timeout_s: float
    connect_timeout_s: float
    call_timeout_s: float
    admin_timeout_s: float


class LocalEngine:
    """A vLLM child that is ready."""

    def __init__(self, engine_id: str, address: str, child: Child, client: VllmClient, context_length: int) -> None:
        self.engine_id = engine_id
        self.address = address
        self.client = client
        self.context_length = context_length
        self._child = child

    @property
    def pid(self) -> int:
        """Process id of the child's guard."""
        return self._child.pid

    async def wait_failed(self) -> str:
        """Returns how the child ended."""
        status = await self._child.wait()
        return f"exit status {status}; its log ends: {_last_lines(self._child)}"

    async def stop(self) -> None:
        """Ends the child and everything below it."""
        await self.client.close()
        await self._child.stop()


class LocalEngineLauncher:
    """Starts vLLM as a child. With `prepare`, a process that has everything imported waits for the first model."""

    def __init__(self, settings: LocalEngineSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._numbers = itertools.count(1)
        self._standby: _Standby | None = None
        self.size = 1
        self.max_adapters = settings.max_cpu_loras
        self.max_rank = settings.max_lora_rank

    async def prepare(self) -> None:
        """Starts a standby process; the next launch takes it."""
        if self._standby is None:
            self._standby = await self._spawn()

    async def launch(self, index: int, base_name: str, model_dir: str) -> LocalEngine:
        """An engine that is ready.

        Raises:
            Internal: it ended or was not ready in time; the message holds the end of its log.
        """
        started = self._clock.monotonic()
        standby, self._standby = self._standby, None
        if standby is None or standby.child.returncode is not None:
            standby = await self._spawn()
        port = await asyncio.to_thread(_free_port)
        await asyncio.to_thread(standby.order, self._arguments(base_name, Path(model_dir), port))
        address = f"127.0.0.1:{port}"
        client = VllmClient(
            address,
            connect_timeout_s=self._settings.connect_timeout_s,
            call_timeout_s=self._settings.call_timeout_s,
            admin_timeout_s=self._settings.admin_timeout_s,
            base_apart=base_name,
        )
        try:
            await self._wait_ready(standby.child, client, base_name)
            _, length = await client.served_names()
        except BaseException:
            await client.close()
            await standby.child.stop()
            raise
        seconds = round(self._clock.monotonic() - started, 1)
        log.info("engine ready", engine=standby.name, base=base_name, address=address, seconds=seconds)
        return LocalEngine(standby.name, address, standby.child, client, length)

    async def close(self) -> None:
        """Ends a standby that was not taken."""
        standby, self._standby = self._standby, None
        if standby is not None:
            await standby.child.stop()

    async def _spawn(self) -> _Standby:
        settings = self._settings
        name = f"engine-{next(self._numbers)}"
        orders = settings.work_dir / f"{name}-{os.getpid()}.json"
        await asyncio.to_thread(_clear, orders)
        argv = [sys.executable, "-m", "longshore_inference_gateway.engine_process", str(orders)]
        child = await spawn(name, argv, env=self._environment(), log_path=settings.log_dir / f"{name}.log")
        return _Standby(name, child, orders)

    def _environment(self) -> dict[str, str]:
        settings = self._settings
        fixed = {
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
            "VLLM_CPU_KVCACHE_SPACE": str(settings.kv_cache_gib),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(settings.threads),
            # Without it the first request waits up to 45 s for a compilation.
            "TORCHDYNAMO_DISABLE": "1",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        kept = {key: value for key, value in os.environ.items() if not key.startswith("LONGSHORE_")}
        return kept | fixed

    def _arguments(self, base_name: str, model_dir: Path, port: int) -> list[str]:
        settings = self._settings
        context = min(settings.max_model_len, _positions(model_dir))
        return [
            *("--model", str(model_dir)),
            *("--served-model-name", base_name),
            *("--host", "127.0.0.1"),
            *("--port", str(port)),
            # "auto" would turn float32 weights into bfloat16, and logprobs into noise.
            *("--dtype", _dtype(model_dir)),
            "--enforce-eager",
            "--enable-lora",
            *("--max-loras", str(settings.max_loras)),
            *("--max-cpu-loras", str(settings.max_cpu_loras)),
            *("--max-lora-rank", str(settings.max_lora_rank)),
            *("--max-model-len", str(context)),
            *("--max-num-seqs", str(settings.max_num_seqs)),
            # A chunked prefill of a call with a seed kills vLLM's engine core on the CPU ("CPU Generator does not use
            # offset"); prompts are short here, and whole ones fit.
            "--no-enable-chunked-prefill",
            *("--max-num-batched-tokens", str(max(settings.max_num_batched_tokens, context))),
            *("--logprobs-mode", "processed_logprobs"),
            *("--generation-config", "vllm"),
            "--enable-scale-out",
            "--disable-uvicorn-access-log",
            *settings.extra_arguments,
        ]

    async def _wait_ready(self, child: Child, client: VllmClient, base_name: str) -> None:
        started = reported = self._clock.monotonic()
        while not await client.healthy():
            now = self._clock.monotonic()
            if child.returncode is not None:
                raise Internal(
                    f"the engine for {base_name} ended with status {child.returncode} while starting; "
                    f"its log {child.log_path} ends: {_last_lines(child)}"
                )
            if now - started > self._settings.start_timeout_s:
                raise Internal(
                    f"the engine for {base_name} was not ready after {self._settings.start_timeout_s:g} s; "
                    f"its log {child.log_path} ends: {_last_lines(child)}"
                )
            if now - reported > _PROGRESS_S:
                reported = now
                log.info("engine is starting", engine=child.name, base=base_name, seconds=round(now - started))
            await self._clock.sleep(_POLL_S)


@dataclass(slots=True)
class _Standby:
    name: str
    child: Child
    orders: Path

    def order(self, arguments: list[str]) -> None:
        """Tells the waiting process what to serve."""
        partial = self.orders.with_suffix(".partial")
        partial.write_text(json.dumps(arguments))
        partial.replace(self.orders)


def _clear(orders: Path) -> None:
    orders.parent.mkdir(parents=True, exist_ok=True)
    orders.unlink(missing_ok=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _last_lines(child: Child) -> str:
    return child.log_tail(_LOG_LINES).strip() or "(empty)"


def _config(model_dir: Path) -> dict[str, object]:
    path = model_dir / "config.json"
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InvalidSpec(f"cannot read {path}: {error}", field="uri") from error
    return value if isinstance(value, dict) else {}


def _dtype(model_dir: Path) -> str:
    config = _config(model_dir)
    value = str(config.get("dtype") or config.get("torch_dtype") or "auto")
    return value.removeprefix("torch.")


def _positions(model_dir: Path) -> int:
    value = _config(model_dir).get("max_position_embeddings")
    return value if isinstance(value, int) and value > 0 else sys.maxsize
