"""What the job is doing, shared between the training loop and the gRPC server's threads."""

import threading
from dataclasses import dataclass, field

from longshore_trainer.domain.vocabulary import JobPhase


@dataclass
class JobStatus:
    """Step and phase; and whether someone asked the job to end after the step in hand."""

    run_id: str
    incarnation: int
    step: int = 0
    phase: JobPhase = JobPhase.LOADING
    _drain: threading.Event = field(default_factory=threading.Event)

    def enter(self, phase: JobPhase, step: int | None = None) -> None:
        """The loop says what it does now."""
        self.phase = phase
        if step is not None:
            self.step = step

    def drain(self) -> None:
        """The job ends after the step in hand is committed, or at once while it waits for a batch."""
        self._drain.set()

    @property
    def draining(self) -> bool:
        """Whether the job is to end."""
        return self._drain.is_set()
