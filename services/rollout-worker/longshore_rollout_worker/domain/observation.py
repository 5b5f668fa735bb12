"""What the model is shown of a command's result."""

import json

from longshore_common.sandbox_exec import ExecResult

TIMEOUT_STATUS = 124
CANNOT_RUN_STATUS = 126


def clean_command(text: str) -> str:
    """The text as an argument of a program can be: no NUL bytes, no lone surrogates."""
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")


def bare_observation(result: ExecResult, chars: int) -> str:
    """`exit 0`, or `exit <status> <first chars of stderr, then stdout, on one line>`."""
    status = observed_status(result)
    if status == 0:
        return "exit 0"
    output = _text(result.stderr.joined()) + _text(result.stdout.joined())
    shown = " ".join(output.split("\n")).strip()[:chars].rstrip()
    return f"exit {status} {shown}".rstrip()


def tool_observation(result: ExecResult, chars: int) -> str:
    """JSON with exit status and both streams, each cut to chars with its middle left out."""
    body: dict[str, str | int | bool] = {"exit": observed_status(result), "stdout": _cut(result.stdout.joined(), chars)}
    if result.stderr.total:
        body["stderr"] = _cut(result.stderr.joined(), chars)
    if result.timed_out:
        body["timed_out"] = True
    return json.dumps(body, ensure_ascii=False)


def observed_status(result: ExecResult) -> int:
    """The exit status as a shell shows it; 124 when the command was cut off, as timeout(1) has it."""
    return TIMEOUT_STATUS if result.timed_out else result.status


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace").replace("\0", "")


def _cut(data: bytes, chars: int) -> str:
    text = _text(data)
    if len(text) <= chars:
        return text
    head, tail = chars - chars // 2, chars // 2
    return (
        f"{text[:head]}\n[... {len(text) - chars} characters left out ...]\n{text[len(text) - tail :] if tail else ''}"
    )
