"""Which line of a Dockerfile a build's log speaks of. Pure."""

from __future__ import annotations

import re

_STEP = re.compile(r"^(?:\[\d+/\d+\] )?step \d+/\d+ ?: (.+)$", re.IGNORECASE | re.MULTILINE)
_LINE = re.compile(r"\bline (\d+)\b")


def instructions(dockerfile: str) -> list[tuple[int, str]]:
    """Line and text of each instruction, continued lines joined, white space made single."""
    found: list[tuple[int, str]] = []
    started, parts = 0, []
    for number, raw in enumerate(dockerfile.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        started = started or number
        parts.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            found.append((started, _single(" ".join(parts))))
            started, parts = 0, []
    return found


def _single(text: str) -> str:
    return " ".join(text.split())


def last_step(dockerfile: str, log: str) -> tuple[int, str]:
    """Line and text of the last instruction that a build began; line 0: it cannot be told, text empty: none began."""
    begun = [_single(text) for text in _STEP.findall(log)]
    if not begun:
        return 0, ""
    known = instructions(dockerfile)
    places = [line for line, text in known if text == begun[-1]]
    # The same instruction may stand there twice.
    nth = begun.count(begun[-1]) - 1
    if nth < len(places):
        return places[nth], begun[-1]
    return (places[-1] if places else 0), begun[-1]


def line_named(message: str) -> int:
    """The line that an engine's own complaint about a Dockerfile names; 0: none."""
    match = _LINE.search(message)
    return int(match.group(1)) if match else 0
