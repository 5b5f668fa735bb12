"""What grading needs to know of a task, read leniently from task.toml: unknown or ill-typed fields give defaults.

The catalog lints tasks at import; here a task that was accepted must not fail over a field nobody uses.
"""

import re
import tomllib
from dataclasses import dataclass
from typing import Any

DEFAULT_VERIFIER_TIMEOUT_S = 600.0
DEFAULT_AGENT_TIMEOUT_S = 600.0
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


class BadTaskConfig(ValueError):
    """task.toml cannot be read, or asks for something that does not exist here."""


@dataclass(frozen=True)
class TaskSpec:
    """Times in seconds. Users are names or uids inside the sandbox, "" is root. workdir "" is the image's."""

    verifier_timeout_s: float
    verifier_user: str
    verifier_env: dict[str, str]
    agent_timeout_s: float
    agent_user: str
    solution_env: dict[str, str]
    workdir: str


def parse_task_toml(data: bytes) -> TaskSpec:
    """Reads the fields above. Raises BadTaskConfig when it is not TOML, or a variable without default is asked for."""
    try:
        document = tomllib.loads(data.decode("utf-8-sig"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadTaskConfig(f"task.toml: {error}") from error
    verifier, agent = _table(document, "verifier"), _table(document, "agent")
    return TaskSpec(
        verifier_timeout_s=_seconds(verifier, DEFAULT_VERIFIER_TIMEOUT_S),
        verifier_user=_user(verifier),
        verifier_env=_env(verifier, "verifier"),
        agent_timeout_s=_seconds(agent, DEFAULT_AGENT_TIMEOUT_S),
        agent_user=_user(agent),
        solution_env=_env(_table(document, "solution"), "solution"),
        workdir=_text(_table(document, "environment").get("workdir")),
    )


def _table(document: dict[str, Any], name: str) -> dict[str, Any]:
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def _seconds(table: dict[str, Any], default: float) -> float:
    value = table.get("timeout_sec")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        return default
    return float(value)


def _user(table: dict[str, Any]) -> str:
    value = table.get("user")
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _env(table: dict[str, Any], where: str) -> dict[str, str]:
    return {name: _expand(str(value), f"[{where}.env] {name}") for name, value in _table(table, "env").items()}


def _expand(value: str, where: str) -> str:
    def default_of(match: re.Match[str]) -> str:
        if match.group(2) is None:
            # Harbor reads the host's environment here; a task's tests must not see the verifier's.
            raise BadTaskConfig(f"task.toml {where}: ${{{match.group(1)}}} has no default; write ${{NAME:-default}}")
        return match.group(2)

    return _VARIABLE.sub(default_of, value)
