import pytest

from longshore_reward_verifier.domain.task_spec import BadTaskConfig, parse_task_toml


def test_an_empty_file_gives_harbors_defaults() -> None:
    spec = parse_task_toml(b"")
    assert (spec.verifier_timeout_s, spec.verifier_user, spec.workdir) == (600.0, "", "")
    assert spec.verifier_env == {}


def test_the_fields_are_read() -> None:
    spec = parse_task_toml(
        b'[verifier]\ntimeout_sec=12\nuser=1000\n[verifier.env]\nA="x${B:-1}y"\nN=3\n'
        b'[agent]\ntimeout_sec=7.5\nuser="me"\n[environment]\nworkdir="/w"\n[solution.env]\nS="1"\n'
    )
    assert spec.verifier_timeout_s == 12.0
    assert spec.verifier_user == "1000"
    assert spec.verifier_env == {"A": "x1y", "N": "3"}
    assert (spec.agent_timeout_s, spec.agent_user, spec.workdir) == (7.5, "me", "/w")
    assert spec.solution_env == {"S": "1"}


@pytest.mark.parametrize(
    "text",
    [
        b"[verifier]\ntimeout_sec='long'\n",
        b"[verifier]\ntimeout_sec=true\n",
        b"[verifier]\ntimeout_sec=-1\n",
        b"[verifier]\ntimeout_sec=inf\n",
        b"[verifier]\ntimeout_sec=nan\n",
        b"verifier=3\n",
    ],
)
def test_ill_typed_fields_give_defaults(text: bytes) -> None:
    """evalscope#1688: timeout=-1 meant none at all."""
    assert parse_task_toml(text).verifier_timeout_s == 600.0


@pytest.mark.parametrize("text", [b"[verifier", b"\xff", b'[verifier.env]\nKEY="${SECRET}"\n'])
def test_what_cannot_be_read_is_refused(text: bytes) -> None:
    with pytest.raises(BadTaskConfig):
        parse_task_toml(text)
