"""Trainer jobs as child processes under torchrun."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from longshore_common.child import Child, spawn
from longshore_controller.domain.jobs import JobFile
from longshore_controller.domain.ports import Job

INTERPRETER = sys.executable
_GRACE_S = 10.0
_TAIL_LINES = 20


class SubprocessJob:
    """A torchrun and its ranks; they die with us."""

    def __init__(self, child: Child) -> None:
        self._child = child

    async def wait(self) -> int:
        return await self._child.wait()

    async def stop(self) -> None:
        await self._child.stop(_GRACE_S)

    def log_tail(self) -> str:
        return self._child.log_tail(_TAIL_LINES)


class SubprocessLauncher:
    """`JobLauncher` on this machine: one job file and one log file per job and incarnation."""

    def __init__(self, jobs_dir: Path, logs_dir: Path, secret: str, processes: int, threads: int) -> None:
        self._jobs_dir = jobs_dir
        self._logs_dir = logs_dir
        self._secret = secret
        self._processes = processes
        self._threads = threads
        # The device node says what the machine has; importing torch for the question would cost seconds.
        self._has_gpu = Path("/dev/nvidiactl").exists() and os.environ.get("CUDA_VISIBLE_DEVICES") != ""

    @property
    def platform(self) -> str:
        return "gpu" if self._has_gpu else "cpu"

    async def launch(self, job: JobFile) -> Job:
        name = f"{job.run_id}-{job.kind}-{job.incarnation}"
        path = self._jobs_dir / f"{name}.json"
        await asyncio.to_thread(_write, path, job.model_dump_json(indent=2))
        argv = [
            INTERPRETER,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc_per_node",
            str(self._processes),
            "-m",
            "longshore_trainer",
            "--job",
            str(path),
        ]
        log_path = self._logs_dir / f"trainer-{name}.log"
        return SubprocessJob(await spawn(f"trainer {name}", argv, env=self._environment(), log_path=log_path))

    def _environment(self) -> dict[str, str]:
        own = {
            "LONGSHORE_SECRET": self._secret,
            "OMP_NUM_THREADS": str(self._threads),
            "PYTHONUNBUFFERED": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        if not self._has_gpu:
            own["DS_ACCELERATOR"] = "cpu"
        return {**os.environ, **own}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.replace(path)
