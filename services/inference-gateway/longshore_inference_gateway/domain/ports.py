"""What the domain needs from outside, as Protocols."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from longshore_common.chatml import ParsedMessage
from longshore_inference_gateway.domain.models import (
    AliasRecord,
    Generated,
    GenerateRequest,
    PolicyVersion,
    ServedBase,
    SessionRecord,
    Turn,
)


class Codec(Protocol):
    """Messages to ids and back for one model."""

    @property
    def tokenizer_digest(self) -> str:
        """Digest of the tokenizer's file."""
        ...

    @property
    def template_digest(self) -> str:
        """Digest of the rules that turn messages into ids."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids at which sampling ends."""
        ...

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        """Ids of a conversation, ready for the assistant's turn. Raises InvalidSpec."""
        ...

    def extend(self, prefix_ids: Sequence[int], messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """prefix_ids as they are, then only the new messages. Raises InvalidSpec."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text, special tokens left out."""
        ...

    def parse(self, ids: Sequence[int]) -> ParsedMessage:
        """Content and tool calls."""
        ...


class CodecLoader(Protocol):
    """Reads a model folder's codec; may block."""

    def __call__(self, model_dir: str) -> Codec:
        """Raises InvalidSpec."""
        ...


class EngineClient(Protocol):
    """One engine's API. Every method raises Unavailable or DeadlineExceeded when the engine does not answer."""

    async def generate(self, request: GenerateRequest) -> Generated:
        """All tokens at once. Raises InvalidSpec when the engine refuses the request."""
        ...

    def stream(self, request: GenerateRequest) -> AsyncIterator[Generated]:
        """Pieces in order; finish_reason and spans come with the last."""
        ...

    async def load_adapter(self, name: str, folder: str) -> None:
        """Loads a LoRA adapter under name. Loaded already under that name: a no-op."""
        ...

    async def unload_adapter(self, name: str) -> None:
        """Removes it; absent: a no-op."""
        ...

    async def served_names(self) -> tuple[list[str], int]:
        """Model names it answers to, and its context length in tokens."""
        ...

    async def healthy(self) -> bool:
        """Whether the health route answers 200 in time."""
        ...

    async def close(self) -> None:
        """Drops connections."""
        ...


class EngineHandle(Protocol):
    """A running engine."""

    @property
    def engine_id(self) -> str:
        """Unique within the gateway's life."""
        ...

    @property
    def address(self) -> str:
        """host:port."""
        ...

    @property
    def pid(self) -> int:
        """Process id of a local engine, else 0."""
        ...

    @property
    def client(self) -> EngineClient:
        """Its API."""
        ...

    @property
    def context_length(self) -> int:
        """Prompt and completion together, tokens."""
        ...

    async def wait_failed(self) -> str:
        """Returns why, once the engine is lost."""
        ...

    async def stop(self) -> None:
        """Ends it, where it is ours to end; lets go of it in any case."""
        ...

    async def release(self) -> None:
        """The gateway ends: lets go of it. Ends it only if it cannot live without the gateway."""
        ...


class EngineLauncher(Protocol):
    """Where engines come from."""

    @property
    def max_adapters(self) -> int:
        """LoRA versions that an engine can hold at once."""
        ...

    @property
    def max_rank(self) -> int:
        """Largest LoRA rank that it serves."""
        ...

    @property
    def size(self) -> int:
        """Engines in a serving set."""
        ...

    async def launch(self, index: int, base: ServedBase) -> EngineHandle:
        """Engine number index of the set, ready and serving base. One that serves it already is taken over.

        Raises:
            Internal, Unavailable: it does not start; the message holds the last lines of its log.
            QuotaExceeded: every engine serves another base.
            InvalidSpec: the engine does not find that base.
        """
        ...

    async def free(self, base: ServedBase) -> None:
        """Nobody needs base any more: engines that were launched for it, or are starting, may serve another."""
        ...

    async def close(self) -> None:
        """Ends whatever is prepared but not used."""
        ...


class TurnSink(Protocol):
    """The trajectory store."""

    async def append(self, turn: Turn) -> None:
        """Durable when it returns. Raises Conflict when the attempt's lease has a newer epoch."""
        ...

    async def turns(self, attempt_id: str, lease_epoch: int) -> list[Turn]:
        """What was captured so far, in order; empty for an unknown attempt."""
        ...


class GatewayStore(Protocol):
    """Sessions, aliases, policy versions."""

    async def add_session(self, session: SessionRecord) -> bool:
        """Durable when it returns. Gives whether the attempt had a session in this epoch before."""
        ...

    async def close_session(self, session: SessionRecord) -> None:
        """Stores the end and the totals."""
        ...

    async def find_session(self, session_id: str) -> SessionRecord | None:
        """By id, open or closed."""
        ...

    async def open_sessions(self) -> list[SessionRecord]:
        """All that are not closed."""
        ...

    async def aliases(self) -> list[AliasRecord]:
        """All, retired ones too."""
        ...

    async def policies(self, alias: str | None = None) -> list[PolicyVersion]:
        """By alias and version."""
        ...

    async def save(self, alias: AliasRecord, *policies: PolicyVersion) -> None:
        """Alias and versions in one transaction."""
        ...
