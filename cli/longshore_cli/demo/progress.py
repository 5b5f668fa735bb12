"""Progress on stderr: one live line on a terminal, one line per event elsewhere; with an estimate of what is left.

The estimate: planned seconds of the stages to come, and for the current one what its own pace says once it has one.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TextIO

_SPIN = "|/-\\"
_MIN_FRACTION = 0.08
"""Below this share of a stage its own pace says too little."""
QUIET_S = 2.0
"""Between two lines about one stage's progress."""


@dataclass
class Stage:
    """A part of the work. `planned_s` is what it takes on two cores."""

    name: str
    planned_s: float
    begun_at: float | None = None
    ended_at: float | None = None
    fraction: float = 0.0
    begun_fraction: float = 0.0

    def left_s(self, now: float) -> float:
        """Estimated seconds to its end."""
        if self.ended_at is not None:
            return 0.0
        if self.begun_at is None:
            return self.planned_s * (1 - self.fraction)
        passed = now - self.begun_at
        gained = self.fraction - self.begun_fraction
        if gained >= _MIN_FRACTION:
            return passed * (1 - self.fraction) / gained
        planned = self.planned_s * (1 - self.begun_fraction)
        return max(planned - passed, 0.1 * planned)


@dataclass
class Progress:
    """Stages with an estimate. Not thread-safe; used from one event loop."""

    stages: Sequence[Stage]
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    clock: Callable[[], float] = time.monotonic
    detail: str = ""
    _turn: int = 0
    _said_at: float = 0.0

    def __post_init__(self) -> None:
        self._start = self.clock()
        self._live = self.stream.isatty()

    def _stage(self, name: str) -> Stage:
        return next(stage for stage in self.stages if stage.name == name)

    @property
    def current(self) -> Stage | None:
        """The newest stage that goes on."""
        going = [s for s in self.stages if s.begun_at is not None and s.ended_at is None]
        return going[-1] if going else None

    def begin(self, name: str, detail: str = "", fraction: float = 0.0) -> None:
        """Enters a stage; `fraction` when it goes on from an interruption."""
        stage = self._stage(name)
        if stage.begun_at is not None:
            return
        stage.begun_at = self.clock()
        stage.fraction = stage.begun_fraction = fraction
        self.say(name, detail or "started")

    def update(self, name: str, fraction: float, detail: str = "") -> None:
        """How far a stage is, 0 to 1. Off a terminal every tenth of the way is a line, unless they come fast."""
        stage = self._stage(name)
        before, stage.fraction = stage.fraction, min(max(fraction, stage.fraction), 1.0)
        self.detail = detail or self.detail
        if self._live:
            self._draw()
        elif detail and int(stage.fraction * 10) > int(before * 10) and self.clock() - self._said_at >= QUIET_S:
            self.say(name, detail)

    def end(self, name: str, detail: str = "") -> None:
        """Leaves a stage."""
        stage = self._stage(name)
        if stage.ended_at is not None:
            return
        stage.begun_at = stage.begun_at if stage.begun_at is not None else self.clock()
        stage.ended_at, stage.fraction = self.clock(), 1.0
        self.say(name, detail or f"done in {_clock(stage.ended_at - stage.begun_at)}")

    def skip(self, name: str, detail: str) -> None:
        """The stage was done before."""
        stage = self._stage(name)
        if stage.begun_at is None:
            stage.begun_at = stage.ended_at = self.clock()
            self.say(name, detail)

    def say(self, name: str, text: str) -> None:
        """One line that stays."""
        self.detail = text
        self._said_at = self.clock()
        line = f"[{_clock(self.elapsed_s())}] {name:<11} {text}  ({self._eta()})"
        self.stream.write(f"\r\x1b[K{line}\n" if self._live else f"{line}\n")
        self.stream.flush()

    def elapsed_s(self) -> float:
        """Since this process began."""
        return self.clock() - self._start

    def left_s(self) -> float:
        """Estimated seconds to the end of all stages."""
        now = self.clock()
        return sum(stage.left_s(now) for stage in self.stages)

    def _eta(self) -> str:
        left = self.left_s()
        return f"about {_clock(left)} left" if left >= 1 else "nearly done"

    def _draw(self) -> None:
        stage = self.current
        if stage is None:
            return
        self._turn += 1
        bar = f"{_SPIN[self._turn % 4]} [{_clock(self.elapsed_s())}] {stage.name} {stage.fraction:.0%}  {self.detail}"
        line = f"{bar}  ({self._eta()})"
        self.stream.write(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}")
        self.stream.flush()

    @contextlib.asynccontextmanager
    async def live(self) -> AsyncIterator[None]:
        """Keeps the live line moving on a terminal for the length of the block."""
        if not self._live:
            yield
            return

        async def tick() -> None:
            while True:
                self._draw()
                await asyncio.sleep(0.5)

        task = asyncio.create_task(tick())
        try:
            yield
        finally:
            task.cancel()
            self.stream.write("\r\x1b[K")
            self.stream.flush()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes}:{rest:02d}"
