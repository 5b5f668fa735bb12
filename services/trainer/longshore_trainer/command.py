"""The command line: job file in, exit code out. Light until the job is known to be good."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from longshore_common import scope, tracing
from longshore_common.errors import InvalidSpec, LongshoreError
from longshore_trainer.domain.job import Job, parse_job
from longshore_trainer.domain.presets import PRESETS, resolve
from longshore_trainer.domain.vocabulary import JobKind
from longshore_trainer.settings import TrainerSettings

OK, FAILED, BAD_JOB = 0, 1, 2


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Options of `python -m longshore_trainer`."""
    parser = argparse.ArgumentParser(
        prog="longshore_trainer", description="Runs one training job. Start it under torchrun for several ranks."
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--job", type=Path, help="job file (JSON)")
    what.add_argument("--presets", action="store_true", help="print presets with their hyper-parameters as JSON")
    parser.add_argument("--check", action="store_true", help="check the job, print its hyper-parameters, train nothing")
    return parser.parse_args(arguments)


def read_job(path: Path) -> Job:
    """The job of a file. Raises InvalidSpec."""
    try:
        text = path.read_text()
    except OSError as error:
        raise InvalidSpec(f"cannot read the job file {path}: {error.strerror}", field="job") from error
    return parse_job(text, path.name)


def presets_json() -> str:
    """All presets, resolved."""
    return json.dumps(
        {
            name: {"kind": p.kind, "source": p.source, "values": resolve(name, p.kind, {}).model_dump(mode="json")}
            for name, p in PRESETS.items()
        },
        indent=1,
    )


def run_job(job: Job, settings: TrainerSettings) -> None:
    """Runs the job to its end. Raises LongshoreError."""
    if job.kind is JobKind.SFT and (job.out_dir / "v0").is_dir():
        return
    prepare_process()
    scope.bind(run=job.run_id)
    tracing.configure("trainer")
    from longshore_common.service import serve_metrics
    from longshore_trainer.api.server import serving
    from longshore_trainer.bootstrap import built
    from longshore_trainer.clients.showing import show_phase
    from longshore_trainer.training.status import JobStatus

    status = JobStatus(job.run_id, job.incarnation)
    with built(settings, job, status) as (ranks, run):
        if not ranks.is_main:
            run()
            return
        show_phase(status)
        if settings.metrics_address:
            serve_metrics("trainer", settings.metrics_address)
        with serving(status, settings.grpc_address, settings.secret.get_secret_value()):
            run()


def prepare_process() -> None:
    """Variables that libraries read when they are imported."""
    # Spinning threads cost several times their gain on machines where engine and services share the cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    # DeepSpeed decorates an optimizer we do not use with torch.compile: that imports Inductor, for seconds.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("DO_NOT_TRACK", "1")


def write_error(job_file: Path, error: LongshoreError) -> None:
    """`<job file>.error.json`: torchrun replaces exit codes, so whoever started the job reads the cause there."""
    body = {"code": error.code, "message": error.message, "details": error.details}
    target = job_file.with_name(f"{job_file.name}.error.json")
    try:
        target.write_text(json.dumps(body))
    except OSError as problem:
        print(f"longshore_trainer: cannot write {target}: {problem.strerror}", file=sys.stderr)


def clear_error(job_file: Path) -> None:
    """Removes the error of an earlier start."""
    job_file.with_name(f"{job_file.name}.error.json").unlink(missing_ok=True)
