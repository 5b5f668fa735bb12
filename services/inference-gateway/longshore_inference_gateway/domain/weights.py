"""What must be known of a weights folder before it is served."""

from __future__ import annotations

from typing import Protocol

from longshore_inference_gateway.domain.models import ModelIdentity
from longshore_inference_gateway.domain.ports import Codec


class WeightsReader(Protocol):
    """Reads and verifies weights folders; slow work happens off the event loop."""

    async def read_base(self, uri: str, digest: str) -> tuple[Codec, ModelIdentity]:
        """Codec and identity of full weights. Raises InvalidSpec: not there, not loadable, or not of this digest."""
        ...

    async def check_adapter(self, uri: str, digest: str, max_rank: int) -> None:
        """Raises InvalidSpec: not there, not of this digest, or not servable as LoRA."""
        ...
