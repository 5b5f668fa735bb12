"""Supervised warm start: full-parameter training on demonstrations; its result is version 0, a Hugging Face folder."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from longshore_common.log import get_logger
from longshore_trainer.clients.controller import ProgressReporter
from longshore_trainer.domain.batch import Example
from longshore_trainer.domain.hyperparameters import SftHyperparameters
from longshore_trainer.domain.job import Job
from longshore_trainer.domain.partition import length_bucketed
from longshore_trainer.domain.schedule import learning_rate
from longshore_trainer.engine.base import UpdateEngine
from longshore_trainer.engine.ranks import Ranks
from longshore_trainer.store.checkpoints import (
    CheckpointStore,
    Manifest,
    StoredFolder,
    publish_folder,
    require_same_run,
)
from longshore_trainer.training.checkpointing import config_digest, write_checkpoint
from longshore_trainer.training.stopwatch import Stopwatch
from longshore_trainer.training.update import StepResult, optimizer_step

log = get_logger(__name__)

UNWRITTEN = StoredFolder(path="", digest="")


@dataclass
class WarmStart:
    """One sft job. `run` goes on from the newest checkpoint and ends with `out_dir/v0` in place."""

    job: Job
    hp: SftHyperparameters
    engine: UpdateEngine
    ranks: Ranks
    store: CheckpointStore
    reporter: ProgressReporter
    examples: Sequence[Example]

    def run(self) -> None:
        """Trains all phases, writes version 0, removes the warm start's checkpoints."""
        done = self._resume()
        total = self.hp.total_steps
        sizes = [phase.batch_size for phase in self.hp.phases for _ in range(phase.steps)]
        plan = length_bucketed([e.length for e in self.examples], sizes, self.hp.bucket_batches, self.job.seed)
        for step in range(done + 1, total + 1):
            batch = [self.examples[index] for index in plan[step - 1]]
            rate = learning_rate(step, total, self.hp)
            result = optimizer_step(self.engine, batch, None, self.hp, self.ranks, rate, Stopwatch())
            if step % self.hp.report_every == 0 or step == total:
                self._report(step, result, rate)
            if step % self.hp.checkpoint_every == 0 and step < total:
                self._checkpoint(step)
        self._finish()

    def _resume(self) -> int:
        manifest = self.store.open() if self.ranks.is_main else None
        raw = self.ranks.broadcast_bytes(manifest.model_dump_json().encode() if manifest else b"")
        if not raw:
            return 0
        manifest = Manifest.model_validate_json(raw)
        require_same_run(manifest, self.job.run_id, config_digest(self.job))
        self.engine.load_state(self.store.folder(manifest.state))
        log.info("warm start goes on", step=manifest.step, of=self.hp.total_steps)
        return manifest.step

    def _report(self, step: int, result: StepResult, rate: float) -> None:
        if not self.ranks.is_main:
            return
        total = self.hp.total_steps
        metrics = {
            "loss": result.sums["loss"],
            "progress": step / total,
            "tokens": result.sums["tokens"],
            "grad_norm": result.grad_norm,
            "learning_rate": rate,
        }
        log.info("warm start", step=step, of=total, loss=round(metrics["loss"], 4))
        self.reporter.report(step=step, total_steps=total, phase="warm_start", metrics=metrics, seconds={})

    def _checkpoint(self, step: int) -> None:
        draft = Manifest(
            run_id=self.job.run_id,
            incarnation=self.job.incarnation,
            step=step,
            version=0,
            policy=None,
            state=UNWRITTEN,
            weights_digest="",
            config_digest=config_digest(self.job),
            cursor={"optimizer_steps": step},
        )
        write_checkpoint(self.store, self.engine, self.ranks, draft, with_policy=False, keep=1)

    def _finish(self) -> None:
        self.ranks.check_equal(self.engine.weights_digest(), "weights after the warm start")
        if self.ranks.is_main:
            publish_folder(self.engine.save_policy, self.job.out_dir / "v0")
            shutil.rmtree(self.job.out_dir / "warm-start", ignore_errors=True)
        self.ranks.barrier()
