"""What the domain reports for metrics."""

from __future__ import annotations

from typing import Protocol

from longshore_inference_gateway.domain.models import Turn


class ChatObserver(Protocol):
    """Called on the event loop; must be quick."""

    def answered(self, turn: Turn, *, total_s: float, engine_s: float, queued_s: float) -> None:
        """A turn was stored and can be delivered."""
        ...

    def failed(self, turn: Turn) -> None:
        """An upstream error was stored as a turn."""
        ...

    def coalesced(self) -> None:
        """A repeated request joined an earlier call."""
        ...
