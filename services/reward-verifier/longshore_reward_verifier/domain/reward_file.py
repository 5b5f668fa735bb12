"""What a reward file may hold. Called by grading with the bytes that the tests left; knows nothing of sandboxes.

A file that breaks a rule raises MalformedReward and never counts as 0: a reward that cannot be read is absent.
"""

import json
import math
import re
from dataclasses import dataclass
from typing import Any

REWARD_KEY = "reward"
_FLOAT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


class MalformedReward(ValueError):
    """The reward file is there and breaks a rule; the message says which one."""


@dataclass(frozen=True)
class ParsedReward:
    """The reward and every key that the file held."""

    reward: float
    keys: dict[str, float]


def parse_reward_json(data: bytes) -> ParsedReward:
    """Reads reward.json: an object of finite numbers with the key `reward`, or with one key only.

    Raises MalformedReward for anything else, booleans and repeated keys included.
    """
    value = _load_json(_text(data))
    if not isinstance(value, dict):
        raise MalformedReward(f"reward.json must be an object of numbers, it is {_kind(value)}")
    if not value:
        raise MalformedReward("reward.json is an empty object")
    keys = {name: _finite(name, number) for name, number in value.items()}
    if REWARD_KEY in keys:
        return ParsedReward(keys[REWARD_KEY], keys)
    if len(keys) == 1:
        return ParsedReward(next(iter(keys.values())), keys)
    raise MalformedReward(
        f"reward.json has {len(keys)} keys and none is {REWARD_KEY!r}: {', '.join(sorted(keys))[:200]}"
    )


def parse_reward_txt(data: bytes) -> ParsedReward:
    """Reads reward.txt: one finite decimal number, blanks around it allowed. Raises MalformedReward otherwise."""
    text = _text(data).strip()
    if not text:
        raise MalformedReward("reward.txt is empty")
    if not _FLOAT.fullmatch(text):
        raise MalformedReward(f"reward.txt must hold one finite number, it holds {text[:80]!r}")
    reward = _finite("reward.txt", float(text))
    return ParsedReward(reward, {REWARD_KEY: reward})


def _text(data: bytes) -> str:
    if not data.strip():
        raise MalformedReward("the reward file is empty")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MalformedReward(f"the reward file is not UTF-8: {error.reason} at byte {error.start}") from error


def _load_json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
    except MalformedReward:
        raise
    except (ValueError, RecursionError) as error:
        raise MalformedReward(f"reward.json is not JSON: {error}") from error


def _refuse_constant(name: str) -> float:
    raise MalformedReward(f"reward.json holds {name}; only finite numbers count")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise MalformedReward("reward.json names a key twice")
    return value


def _finite(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MalformedReward(f"{name[:80]!r} must be a finite number, it is {_kind(value)}")
    try:
        number = float(value)
    except OverflowError as error:
        raise MalformedReward(f"{name[:80]!r} is too large for a number") from error
    if not math.isfinite(number):
        raise MalformedReward(f"{name[:80]!r} must be a finite number, it is {number}")
    return number


def _kind(value: Any) -> str:
    kinds = {bool: "a boolean", str: "a string", list: "a list", dict: "an object", type(None): "null"}
    return kinds.get(type(value), f"the number {value!r}"[:80])
