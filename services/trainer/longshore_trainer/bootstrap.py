"""Picks the concrete parts of a job: ranks, engine, stores, clients. Imports torch: only for a checked job."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from longshore_common.errors import InvalidSpec
from longshore_common.log import get_logger
from longshore_trainer.clients.calls import PatientCaller
from longshore_trainer.clients.controller import ControllerClient, ProgressReporter, SilentReporter
from longshore_trainer.clients.gateway import GatewayClient
from longshore_trainer.clients.showing import ShowingReporter
from longshore_trainer.clients.trajectory import TrajectoryClient
from longshore_trainer.domain.hyperparameters import Hyperparameters, PolicyHyperparameters, SftHyperparameters
from longshore_trainer.domain.job import Job
from longshore_trainer.engine import ranks as process_group
from longshore_trainer.engine.base import UpdateEngine
from longshore_trainer.engine.model import Policy, load_policy
from longshore_trainer.engine.ranks import Ranks
from longshore_trainer.engine.torch_engine import TorchEngine
from longshore_trainer.settings import EngineKind, TrainerSettings
from longshore_trainer.store.checkpoints import CheckpointStore, disk_errors
from longshore_trainer.training.policy import Peers, PolicyTraining
from longshore_trainer.training.status import JobStatus

log = get_logger(__name__)


@contextmanager
def built(settings: TrainerSettings, job: Job, status: JobStatus) -> Iterator[tuple[Ranks, Callable[[], None]]]:
    """The job's ranks and what runs it, inside its process group."""
    _prepare(job)
    ranks = process_group.join()
    try:
        threads = settings.threads or process_group.threads_per_rank()
        torch.set_num_threads(threads)
        hp = job.hyperparameters()
        log.info("job starts", kind=job.kind.value, preset=job.preset, ranks=ranks.size, threads=threads)
        if isinstance(hp, SftHyperparameters):
            yield ranks, _warm_start(settings, job, hp, ranks)
        else:
            yield ranks, _policy_training(settings, job, hp, ranks, status)
    finally:
        process_group.leave()


def _prepare(job: Job) -> None:
    if not job.model_dir.is_dir():
        raise InvalidSpec(f"{job.model_dir} is no folder", field="model_dir")
    with disk_errors(job.out_dir):
        job.out_dir.mkdir(parents=True, exist_ok=True)


def _warm_start(settings: TrainerSettings, job: Job, hp: SftHyperparameters, ranks: Ranks) -> Callable[[], None]:
    from longshore_common.chatml import ChatMLCodec
    from longshore_trainer.training.demonstrations import read_demonstrations
    from longshore_trainer.training.sft import WarmStart

    assert job.demonstrations is not None
    examples = read_demonstrations(job.demonstrations, ChatMLCodec.from_dir(job.model_dir), hp.max_length)
    if job.lora is not None:
        raise InvalidSpec("a warm start trains all parameters: remove lora from the job", field="lora")
    engine = make_engine(settings, load_policy(job.model_dir, None, hp, job.seed), hp, ranks)
    store = CheckpointStore(job.out_dir / "warm-start", job.incarnation)
    return WarmStart(job, hp, engine, ranks, store, _reporter(settings, job), examples).run


def _policy_training(
    settings: TrainerSettings, job: Job, hp: PolicyHyperparameters, ranks: Ranks, status: JobStatus
) -> Callable[[], None]:
    engine = make_engine(settings, load_policy(job.model_dir, job.lora, hp, job.seed), hp, ranks)
    store = CheckpointStore(job.out_dir, job.incarnation)
    peers = _peers(settings, job) if ranks.is_main else None
    return PolicyTraining(job, hp, engine, ranks, store, peers, status, settings.take_wait_s).run


def make_engine(settings: TrainerSettings, policy: Policy, hp: Hyperparameters, ranks: Ranks) -> UpdateEngine:
    """DeepSpeed, or plain torch when asked for or when DeepSpeed cannot be imported here."""
    if settings.engine is EngineKind.TORCH:
        return TorchEngine(policy, hp, ranks)
    from longshore_trainer.engine.deepspeed_engine import DeepSpeedEngine, import_deepspeed

    try:
        import_deepspeed()
    except (ImportError, OSError, RuntimeError) as error:
        if settings.engine is EngineKind.DEEPSPEED or settings.zero_stage > 0:
            raise InvalidSpec(f"DeepSpeed cannot run here: {error}; set LONGSHORE_TRAINER_ENGINE=torch") from error
        log.warning("DeepSpeed cannot run here: falling back to plain torch", error=str(error))
        return TorchEngine(policy, hp, ranks)
    return DeepSpeedEngine(policy, hp, ranks, settings.zero_stage)


def _peers(settings: TrainerSettings, job: Job) -> Peers:
    secret, caller = settings.secret.get_secret_value(), PatientCaller(settings.patience_s)
    return Peers(
        batches=TrajectoryClient(job.addresses.trajectory, secret, job.run_id, job.incarnation, caller),
        publisher=GatewayClient(
            job.addresses.gateway, secret, job.run_id, job.alias, job.incarnation, caller, settings.publish_timeout_s
        ),
        reporter=_reporter(settings, job),
    )


def _reporter(settings: TrainerSettings, job: Job) -> ProgressReporter:
    return ShowingReporter(job.run_id, _controller(settings, job))


def _controller(settings: TrainerSettings, job: Job) -> ProgressReporter:
    if not job.addresses.controller:
        return SilentReporter()
    secret, caller = settings.secret.get_secret_value(), PatientCaller(settings.patience_s)
    return ControllerClient(job.addresses.controller, secret, job.run_id, job.incarnation, caller)
