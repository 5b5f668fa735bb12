"""Demonstrations: JSON lines of messages, rendered to token ids with the assistant's tokens marked."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from longshore_common.chatml import ChatMLCodec
from longshore_common.errors import InvalidSpec
from longshore_trainer.domain.batch import Example


def read_demonstrations(path: Path, codec: ChatMLCodec, max_length: int) -> list[Example]:
    """One example per line. Raises InvalidSpec naming the line: broken, without assistant tokens, or too long."""
    if not path.is_file():
        raise InvalidSpec(f"{path} does not exist", field="demonstrations")
    examples: list[Example] = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        where = f"{path.name}:{number}"
        examples.append(_example(_messages(line, where), codec, max_length, len(examples), where))
    if not examples:
        raise InvalidSpec(f"{path} holds no demonstrations", field="demonstrations")
    return examples


def _messages(line: str, where: str) -> list[dict[str, Any]]:
    try:
        raw = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidSpec(f"{where} is not JSON: {error}", field="demonstrations") from error
    messages = raw.get("messages") if isinstance(raw, dict) else None
    if not isinstance(messages, list) or not all(isinstance(m, dict) and "role" in m for m in messages):
        raise InvalidSpec(f'{where} must be {{"messages": [{{"role", "content"}}, ...]}}', field="demonstrations")
    return messages


def _example(messages: list[dict[str, Any]], codec: ChatMLCodec, max_length: int, index: int, where: str) -> Example:
    ids, mask = codec.render_masked(messages)
    mask_T = np.asarray(mask, dtype=np.bool_)
    if not mask_T.any():
        raise InvalidSpec(f"{where} has no assistant message to learn from", field="demonstrations")
    if len(ids) > max_length:
        raise InvalidSpec(f"{where} has {len(ids)} tokens; max_length is {max_length}", field="demonstrations")
    return Example(
        attempt=index,
        token_ids_T=np.asarray(ids, dtype=np.int32),
        loss_mask_T=mask_T,
        behaviour_T=np.zeros(len(ids), dtype=np.float32),
        advantages_T=np.zeros(len(ids), dtype=np.float32),
    )
