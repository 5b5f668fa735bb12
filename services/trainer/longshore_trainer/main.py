"""Entry point: settings -> logging -> job -> run."""

import sys
from collections.abc import Sequence

from longshore_common.errors import InvalidSpec, LongshoreError
from longshore_common.log import configure
from longshore_trainer import command
from longshore_trainer.settings import TrainerSettings


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 done, 2 bad job (one clear error), 1 anything else that stopped it."""
    options = command.parse_arguments(arguments)
    settings = TrainerSettings()
    configure(settings.log_level, settings.log_json)
    if options.presets:
        print(command.presets_json())
        return command.OK
    try:
        job = command.read_job(options.job)
        if options.check:
            print(job.hyperparameters().model_dump_json(indent=1))
            return command.OK
        command.clear_error(options.job)
        command.run_job(job, settings)
    except LongshoreError as error:
        print(f"longshore_trainer: {error.code}: {error.message}", file=sys.stderr)
        command.write_error(options.job, error)
        return command.BAD_JOB if isinstance(error, InvalidSpec) else command.FAILED
    return command.OK
