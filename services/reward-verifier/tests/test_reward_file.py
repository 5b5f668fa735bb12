import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore_reward_verifier.domain.reward_file import MalformedReward, parse_reward_json, parse_reward_txt

finite = st.floats(allow_nan=False, allow_infinity=False)

MALFORMED_JSON = {
    "empty": b"",
    "blank": b" \n",
    "nul": b"\x00",
    "truncated": b'{"reward": 1',
    "not json (hud-python#516: a malformed file crashed the grader)": b"reward: 1",
    "scalar": b"1",
    "scalar float": b"1.0",
    "string": b'"1.0"',
    "null": b"null",
    "true": b"true",
    "list": b"[1.0]",
    "empty object": b"{}",
    "boolean": b'{"reward": true}',
    "number in a string": b'{"reward": "1.0"}',
    "null value": b'{"reward": null}',
    "nested": b'{"reward": {"value": 1}}',
    "nan": b'{"reward": NaN}',
    "inf": b'{"reward": Infinity}',
    "minus inf": b'{"reward": -Infinity}',
    "too large": b'{"reward": 1e309}',
    "integer too large for a float": b'{"reward": 1' + b"0" * 400 + b"}",
    "integer too long to read": b'{"reward": 1' + b"0" * 5000 + b"}",
    "another key is nan": b'{"reward": 1, "tests": NaN}',
    "another key is a boolean": b'{"reward": 1, "passed": true}',
    "two keys, none is reward": b'{"a": 1, "b": 0}',
    "key twice": b'{"reward": 0, "reward": 1}',
    "not utf-8": b'{"reward": 1, "\xff": 1}',
    "deep": b"[" * 60000,
    "two documents": b'{"reward": 1}{"reward": 0}',
}

MALFORMED_TXT = {
    "empty": b"",
    "blank": b"\n\n",
    "nan": b"nan",
    "inf": b"inf",
    "infinity": b"-Infinity",
    "too large": b"1e309",
    "word": b"passed",
    "two numbers": b"1.0 0.0",
    "two lines": b"1\n0",
    "underscore": b"1_0",
    "hex": b"0x1",
    "comma": b"0,5",
    "quoted": b'"1.0"',
    "other digits": "١".encode(),
    "boolean": b"true",
    "not utf-8": b"\xff1",
    "nul": b"1\x00",
}


@pytest.mark.parametrize("name", MALFORMED_JSON)
def test_a_malformed_json_is_refused_and_is_never_zero(name: str) -> None:
    with pytest.raises(MalformedReward):
        parse_reward_json(MALFORMED_JSON[name])


@pytest.mark.parametrize("name", MALFORMED_TXT)
def test_a_malformed_txt_is_refused_and_is_never_zero(name: str) -> None:
    with pytest.raises(MalformedReward):
        parse_reward_txt(MALFORMED_TXT[name])


@pytest.mark.parametrize(
    ("data", "reward"),
    [
        (b'{"reward": 1}', 1.0),
        (b'{"reward": 0.25, "tests": 7}', 0.25),
        (b'{"score": -2}', -2.0),
        (b'\xef\xbb\xbf{"reward": 1}\r\n', 1.0),
        (b'{"reward": -0.0}', 0.0),
    ],
)
def test_reward_json_takes_the_key_reward_or_the_only_key(data: bytes, reward: float) -> None:
    assert parse_reward_json(data).reward == reward


@pytest.mark.parametrize("text", [b"1", b"1.0\n", b" +1e0 ", b"1.", b"\xef\xbb\xbf1"])
def test_reward_txt_takes_one_number(text: bytes) -> None:
    assert parse_reward_txt(text).reward == 1.0
    assert parse_reward_txt(text).keys == {"reward": 1.0}


@given(st.dictionaries(st.text(max_size=20), finite, max_size=5), finite)
def test_every_finite_object_with_reward_is_read_exactly(keys: dict[str, float], reward: float) -> None:
    keys["reward"] = reward
    parsed = parse_reward_json(json.dumps(keys).encode())
    assert parsed.reward == reward
    assert parsed.keys == keys


@given(finite)
def test_every_finite_float_survives_reward_txt(value: float) -> None:
    assert parse_reward_txt(repr(value).encode()).reward == value


@given(st.binary(max_size=200))
def test_any_bytes_give_a_finite_reward_or_a_typed_refusal(data: bytes) -> None:
    for parse in (parse_reward_json, parse_reward_txt):
        try:
            parsed = parse(data)
        except MalformedReward:
            continue
        assert math.isfinite(parsed.reward)
