"""Lets go of what a run holds elsewhere. Nothing here may keep a run from ending."""

from __future__ import annotations

from longshore_common.errors import LongshoreError, NotFound
from longshore_common.log import get_logger
from longshore_common.patience import Patience
from longshore_controller.domain.ports import Gateway, Trajectory

log = get_logger(__name__)


class RunCloser:
    """For runs that were stopped or failed: both services open again when the run is resumed.

    An alias that is never retired keeps its engines from all later runs, so `patiently` waits for the gateway.
    """

    def __init__(self, trajectory: Trajectory, gateway: Gateway, patiently: Patience) -> None:
        self._trajectory = trajectory
        self._gateway = gateway
        self._patiently = patiently

    async def close(self, run_id: str, alias: str) -> None:
        """The trainer gets no more batches; the engine stops. Open attempts stay open, so that a resume goes on."""
        try:
            await self._patiently("close the run", lambda: self._trajectory.close_run(run_id, discard_open=False))
        except LongshoreError as error:
            log.warning("the run was not closed in the trajectory store", run=run_id, error=error.message)
        await self.retire(run_id, alias)

    async def retire(self, run_id: str, alias: str) -> None:
        """Engines of the alias stop."""
        try:
            await self._patiently("retire the alias", lambda: self._gateway.retire(alias))
        except NotFound:
            log.debug("the alias was never published", run=run_id, alias=alias)
        except LongshoreError as error:
            log.warning("the alias was not retired", run=run_id, alias=alias, error=error.message)
