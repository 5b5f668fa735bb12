"""Policy optimisation: take a batch, update, make the checkpoint durable, publish, commit, report; step by step.

Invariants: a version is published only after its manifest is durable; the ledger in the store is marked only after the
publish; a resumed job trains no group of its manifest again and publishes the manifest's version again.
"""

from dataclasses import dataclass, field
from enum import IntEnum

from longshore_common.errors import Internal
from longshore_common.log import get_logger
from longshore_trainer.clients.controller import ProgressReporter
from longshore_trainer.clients.gateway import PolicyPublisher
from longshore_trainer.clients.trajectory import BatchSource, parse_batch
from longshore_trainer.domain.batch import Batch, make_examples, statistics
from longshore_trainer.domain.hyperparameters import PolicyHyperparameters
from longshore_trainer.domain.job import Job
from longshore_trainer.domain.schedule import learning_rate
from longshore_trainer.domain.vocabulary import JobPhase
from longshore_trainer.engine.base import UpdateEngine
from longshore_trainer.engine.ranks import Ranks
from longshore_trainer.store.checkpoints import CheckpointStore, Manifest, StoredFolder, require_same_run
from longshore_trainer.training.checkpointing import config_digest, write_checkpoint
from longshore_trainer.training.memory import peak_rss_bytes
from longshore_trainer.training.status import JobStatus
from longshore_trainer.training.stopwatch import Stopwatch
from longshore_trainer.training.update import policy_update

log = get_logger(__name__)

MISMATCH_WARNING = 1e-3
"""k3 between sampler and trainer above which the two do not compute the same policy (float32 agrees to 1e-9)."""


class Signal(IntEnum):
    """First byte of rank 0's broadcast in every round of waiting."""

    WAIT = 0
    BATCH = 1
    END = 2


@dataclass(frozen=True)
class Peers:
    """The services that rank 0 talks to; None on the other ranks."""

    batches: BatchSource
    publisher: PolicyPublisher
    reporter: ProgressReporter


@dataclass
class PolicyTraining:
    """One rl job."""

    job: Job
    hp: PolicyHyperparameters
    engine: UpdateEngine
    ranks: Ranks
    store: CheckpointStore
    peers: Peers | None
    status: JobStatus
    take_wait_s: float = 10.0
    """Long poll for a batch, seconds."""
    config_digest: str = ""
    _manifest: Manifest | None = None
    _stop: bool = False
    _watch: Stopwatch = field(default_factory=Stopwatch)

    def run(self) -> None:
        """Trains until `steps` are done, the run is closed or stopped, or someone drains the job."""
        self.config_digest = config_digest(self.job)
        self._resume()
        first = 1 if self._manifest is None else self._manifest.step + 1
        for step in range(first, self.job.steps + 1):
            self._watch = Stopwatch()
            batch = self._next_batch(step)
            if batch is None:
                break
            self._train(step, batch)
        self.status.enter(JobPhase.DONE)

    def _resume(self) -> None:
        manifest = self.store.open() if self.ranks.is_main else None
        raw = self.ranks.broadcast_bytes(manifest.model_dump_json().encode() if manifest else b"")
        self._manifest = Manifest.model_validate_json(raw) if raw else None
        if self._manifest is not None:
            require_same_run(self._manifest, self.job.run_id, self.config_digest)
            self.engine.load_state(self.store.folder(self._manifest.state))
            self._check_restored(self._manifest)
            self.status.enter(JobPhase.LOADING, self._manifest.step)
            log.info("going on from a checkpoint", step=self._manifest.step, version=self._manifest.version)
        if self.peers is None:
            return
        ledger = list(self._manifest.consumed_group_ids) if self._manifest else []
        self.peers.batches.resume(self._manifest.step if self._manifest else 0, ledger)
        if self._manifest is not None:
            self._publish(self._manifest)
            self._report(self._manifest)

    def _check_restored(self, manifest: Manifest) -> None:
        restored = self.engine.weights_digest()
        if restored != manifest.weights_digest:
            raise Internal(f"weights of step {manifest.step} came back as {restored}, not {manifest.weights_digest}")

    def _next_batch(self, step: int) -> Batch | None:
        """The batch of the step on every rank; None when the job is to end."""
        self.status.enter(JobPhase.WAITING_FOR_BATCH, step)
        with self._watch.timed("wait_for_batch"):
            while True:
                frame = self.ranks.broadcast_bytes(self._poll(step) if self.peers else None)
                if frame[0] == Signal.END:
                    return None
                if frame[0] == Signal.BATCH:
                    return parse_batch(frame[1:])

    def _poll(self, step: int) -> bytes:
        assert self.peers is not None
        if self._stop or self.status.draining:
            return bytes([Signal.END])
        taken = self.peers.batches.take(step, self.job.groups_per_step, self.job.max_staleness, self.take_wait_s)
        if taken.batch is not None:
            return bytes([Signal.BATCH]) + taken.batch
        return bytes([Signal.END if taken.closed else Signal.WAIT])

    def _train(self, step: int, batch: Batch) -> None:
        self.status.enter(JobPhase.TRAINING, step)
        rate = learning_rate(step, self.job.steps, self.hp)
        with self._watch.timed("train"):
            examples = make_examples(batch, self.hp)
            try:
                metrics = policy_update(
                    self.engine, examples, self.hp, self.ranks, rate, (self.job.seed, step), self._watch
                )
            except Internal as error:
                raise Internal(
                    f"step {step}: {error.message}", details={"groups": ",".join(batch.group_ids)}
                ) from error
        figures = statistics(batch)
        metrics |= {name: float(value) for name, value in vars(figures).items()} | {"learning_rate": rate}
        metrics["peak_rss_bytes"] = peak_rss_bytes()
        if metrics["mismatch_kl"] > MISMATCH_WARNING:
            log.warning(
                "sampler and trainer disagree: is algorithm temperature the rollout's?",
                mismatch_kl=metrics["mismatch_kl"],
            )
        self._manifest = self._checkpoint(step, batch, metrics)
        if self.peers is not None:
            self._announce(self._manifest, batch)

    def _checkpoint(self, step: int, batch: Batch, metrics: dict[str, float]) -> Manifest:
        self.status.enter(JobPhase.CHECKPOINTING)
        ledger = self._manifest.consumed_group_ids if self._manifest else ()
        draft = Manifest(
            run_id=self.job.run_id,
            incarnation=self.job.incarnation,
            step=step,
            version=step,
            policy=None,
            state=StoredFolder(path="", digest=""),
            consumed_group_ids=(*ledger, *batch.group_ids),
            cursor={"step": step, "groups": len(ledger) + len(batch.groups)},
            weights_digest="",
            config_digest=self.config_digest,
            metrics=metrics,
            seconds=dict(self._watch.seconds),
        )
        with self._watch.timed("checkpoint"):
            return write_checkpoint(
                self.store, self.engine, self.ranks, draft, with_policy=True, keep=self.job.keep_checkpoints
            )

    def _announce(self, manifest: Manifest, batch: Batch) -> None:
        assert self.peers is not None
        self.status.enter(JobPhase.PUBLISHING)
        with self._watch.timed("publish"):
            self._publish(manifest)
        self.peers.batches.commit(manifest.step, batch.batch_id)
        self._report(manifest.model_copy(update={"seconds": dict(self._watch.seconds)}))

    def _publish(self, manifest: Manifest) -> None:
        assert self.peers is not None
        assert manifest.policy is not None
        folder = self.store.folder(manifest.policy)
        self.peers.publisher.publish(
            manifest.version, folder, manifest.policy.digest, adapter=self.job.lora is not None
        )

    def _report(self, manifest: Manifest) -> None:
        assert self.peers is not None
        shown = {
            key: round(manifest.metrics[key], 5) for key in ("reward_mean", "loss", "kl") if key in manifest.metrics
        }
        log.info("step done", step=manifest.step, of=self.job.steps, **shown)
        self._stop = self.peers.reporter.report(
            step=manifest.step,
            total_steps=self.job.steps,
            phase="train",
            metrics=manifest.metrics,
            seconds=manifest.seconds,
        )
