"""From YAML or JSON text to a RunSpec, with every problem of the text reported at once: where, what, and what to do."""

from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from longshore_common.errors import InvalidSpec
from longshore_controller.domain.presets import near_miss
from longshore_controller.domain.spec import RunSpec

Path = tuple[str | int, ...]
_MAX_BYTES = 1_000_000


@dataclass(frozen=True)
class Problem:
    """One thing wrong in a spec."""

    path: Path
    message: str
    line: int | None
    """From 1."""

    def __str__(self) -> str:
        where = dotted(self.path) or "spec"
        return f"{where}{f' (line {self.line})' if self.line else ''}: {self.message}"


def dotted(path: Path) -> str:
    """rollout.group_size, overrides.betas[0]."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else part)
    return text


def parse_spec(text: str) -> RunSpec:
    """The run spec in a YAML or JSON text.

    Raises:
        InvalidSpec: not YAML, keys twice, unknown keys, wrong types or ranges; all of them in one error.
    """
    if len(text) > _MAX_BYTES:
        raise InvalidSpec(f"the run spec has {len(text)} characters, more than {_MAX_BYTES}: is it the right file?")
    root = _compose(text)
    lines: dict[Path, int] = {}
    problems = _walk(root, (), lines)
    value = yaml.safe_load(text) if not problems else None
    if not problems and not isinstance(value, dict):
        raise InvalidSpec(
            "the run spec must be a mapping with keys such as name, model, tasks, algorithm", field="spec"
        )
    if not problems:
        try:
            return RunSpec.model_validate(value)
        except ValidationError as error:
            problems = [_problem(detail, lines) for detail in error.errors(include_url=False)]
    raise _together(problems)


def _compose(text: str) -> yaml.Node:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        reason = getattr(error, "problem", None) or str(error)
        raise InvalidSpec(f"the run spec is not valid YAML{where}: {reason}", field="spec") from error
    if root is None:
        raise InvalidSpec("the run spec is empty; start from examples/runs/demo-grpo.yaml", field="spec")
    return root


def _walk(node: yaml.Node, path: Path, lines: dict[Path, int]) -> list[Problem]:
    """Notes the line of every path; finds keys given twice."""
    problems: list[Problem] = []
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, child in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            here = (*path, name)
            if name in seen:
                problems.append(Problem(here, f"given twice, first on line {seen[name]}; keep one", line))
            seen[name] = line
            lines[here] = line
            problems += _walk(child, here, lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, child in enumerate(node.value):
            problems += _walk(child, (*path, index), lines)
    return problems


def _problem(detail: Any, lines: dict[Path, int]) -> Problem:
    location: Path = tuple(detail["loc"])
    kind, message = detail["type"], detail["msg"]
    if kind == "extra_forbidden":
        known = _fields_at(location[:-1])
        name = str(location[-1])
        message = f"unknown key '{name}'{near_miss(name, known)}; known here: {', '.join(known)}"
    elif kind == "missing":
        message = "required but missing; add it"
    elif kind == "value_error":
        message = message.removeprefix("Value error, ")
    elif kind == "string_pattern_mismatch":
        message = f"got {detail['input']!r}; use at most 63 lower-case letters, digits and dashes"
    else:
        message = f"{message[0].lower()}{message[1:]}; got {detail['input']!r}"
    line = lines.get(location)
    parent = location
    while line is None and parent:
        parent = parent[:-1]
        line = lines.get(parent)
    return Problem(location, message, line)


def _fields_at(path: Path) -> list[str]:
    model: type[BaseModel] = RunSpec
    for part in path:
        field = model.model_fields.get(str(part))
        if field is None:
            return []
        candidates = (field.annotation, *typing.get_args(field.annotation))
        inner = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
        if inner is None:
            return []
        model = inner
    return list(model.model_fields)


def _together(problems: list[Problem]) -> InvalidSpec:
    unique = list(dict.fromkeys(str(problem) for problem in problems))
    count = f"{len(unique)} problems" if len(unique) > 1 else "a problem"
    details = {f"problem.{index}": text for index, text in enumerate(unique)}
    first = dotted(problems[0].path)
    return InvalidSpec(
        f"the run spec has {count}:\n" + "\n".join(f"- {p}" for p in unique), field=first, details=details
    )
