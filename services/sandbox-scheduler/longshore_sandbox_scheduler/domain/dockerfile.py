"""The part of the Dockerfile language that a local root tree can honour. All else is refused with its line."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from longshore_common.errors import InvalidSpec

NO_EFFECT = frozenset({"CMD", "ENTRYPOINT", "EXPOSE", "LABEL", "MAINTAINER", "STOPSIGNAL"})
"""Accepted without effect: commands come by exec, there is no network, and labels are for registries."""

_COPY_FLAGS = ("--chmod", "--chown", "--link")
_ROOT_OWNERS = frozenset({"root", "0", "root:root", "0:0"})
_VARIABLE = re.compile(r"\\(\$)|\$(?:(\w+)|\{(\w+)(?:(:[-+])([^}]*))?\})")


@dataclass(frozen=True)
class Copy:
    """COPY: sources relative to the context, destination absolute; into_folder when it must be a folder.

    relative: the destination was written relative to the working folder.
    """

    line: int
    sources: tuple[str, ...]
    destination: str
    into_folder: bool
    mode: int | None = None
    relative: bool = False


@dataclass(frozen=True)
class Run:
    """RUN: argv, with the environment, folder and user that hold at this line."""

    line: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    workdir: str
    user: str


@dataclass(frozen=True)
class MakeFolder:
    """WORKDIR's folder."""

    line: int
    path: str


Step = Copy | Run | MakeFolder


@dataclass(frozen=True)
class Dockerfile:
    """A parsed file: base name with its line, steps in order, and what holds at the end."""

    base: str
    base_line: int
    steps: tuple[Step, ...]
    env: Mapping[str, str]
    workdir: str
    user: str


def parse(text: str, where: str = "environment/Dockerfile") -> Dockerfile:
    """Parses a Dockerfile.

    Raises:
        InvalidSpec: an instruction that cannot be honoured, or a malformed one; field is "<where>:<line>".
    """
    return _Parser(where).run(text)


@dataclass
class _Parser:
    where: str
    base: str = ""
    base_line: int = 0
    steps: list[Step] = field(default_factory=list)
    arguments: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = ""

    def run(self, text: str) -> Dockerfile:
        for line, logical in self._logical_lines(text):
            word, *rest = logical.split(None, 1)
            self._instruction(line, word.upper(), rest[0].strip() if rest else "")
        if not self.base:
            raise self._refuse(1, "there is no FROM")
        return Dockerfile(self.base, self.base_line, tuple(self.steps), dict(self.env), self.workdir, self.user)

    def _refuse(self, line: int, message: str) -> InvalidSpec:
        return InvalidSpec(f"{self.where}:{line}: {message}", field=f"{self.where}:{line}")

    def _logical_lines(self, text: str) -> list[tuple[int, str]]:
        result: list[tuple[int, str]] = []
        pending, started = "", 0
        for number, raw in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
            if "\r" in raw:
                raise self._refuse(number, "CRLF line end; save the file with LF line ends")
            self._check_directive(number, raw)
            stripped = raw.strip()
            if not stripped or stripped.startswith("#"):
                continue
            started = started or number
            if stripped.endswith("\\"):
                pending += raw.rstrip()[:-1]
                continue
            result.append((started, (pending + raw).strip()))
            pending, started = "", 0
        if pending.strip():
            raise self._refuse(started, "the last line ends with a backslash; nothing continues it")
        return result

    def _check_directive(self, number: int, raw: str) -> None:
        match = re.match(r"#\s*escape\s*=\s*(\S+)", raw)
        if match and match.group(1) != "\\":
            raise self._refuse(number, "the escape directive is not supported; use backslashes")

    def _instruction(self, line: int, word: str, rest: str) -> None:
        if not self.base and word not in ("FROM", "ARG"):
            raise self._refuse(line, f"{word} before FROM")
        handlers: dict[str, Callable[[int, str], None]] = {
            "FROM": self._from, "WORKDIR": self._workdir, "COPY": self._copy, "ENV": self._env, "RUN": self._run,
            "USER": self._user, "ARG": self._arg,
        }  # fmt: skip
        if word in NO_EFFECT:
            return
        if word == "ADD":
            raise self._refuse(line, "ADD is not supported here; use COPY (nothing is downloaded or unpacked)")
        if word not in handlers:
            raise self._refuse(line, f"{word} is not supported by the local runtime; remove it")
        if not rest:
            raise self._refuse(line, f"{word} needs an argument")
        handlers[word](line, rest)

    def _expand(self, text: str) -> str:
        known = {**self.arguments, **self.env}

        def value(match: re.Match[str]) -> str:
            if match.group(1):
                return "$"
            found = known.get(match.group(2) or match.group(3))
            operator, word = match.group(4), match.group(5) or ""
            if operator == ":-":
                return found or word
            if operator == ":+":
                return word if found else ""
            return found or ""

        return _VARIABLE.sub(value, text)

    def _words(self, line: int, rest: str) -> list[str]:
        try:
            return shlex.split(rest)
        except ValueError as error:
            raise self._refuse(line, f"cannot read {rest!r}: {error}") from error

    def _json_array(self, line: int, rest: str) -> list[str] | None:
        if not rest.startswith("["):
            return None
        try:
            value = json.loads(rest)
        except ValueError as error:
            raise self._refuse(line, f"{rest!r} is not a JSON array of strings: {error}") from error
        if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
            raise self._refuse(line, f"{rest!r} is not a JSON array of strings")
        return value

    def _from(self, line: int, rest: str) -> None:
        if self.base:
            raise self._refuse(line, "a second FROM: multi-stage builds are not supported by the local runtime")
        words = self._words(line, self._expand(rest))
        words = [word for word in words if not word.startswith("--platform=")]
        if len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS"):
            raise self._refuse(line, f"cannot read FROM {rest!r}; expected a name")
        self.base, self.base_line = words[0], line
        self.arguments = {}

    def _workdir(self, line: int, rest: str) -> None:
        (path,) = self._one(line, "WORKDIR", self._expand(rest))
        self.workdir = _join(self.workdir, path)
        self.steps.append(MakeFolder(line, self.workdir))

    def _one(self, line: int, word: str, rest: str) -> list[str]:
        words = self._words(line, rest)
        if len(words) != 1:
            raise self._refuse(line, f"{word} takes one argument, not {rest!r}")
        return words

    def _user(self, line: int, rest: str) -> None:
        (name,) = self._one(line, "USER", self._expand(rest))
        self.user = name.partition(":")[0]

    def _arg(self, line: int, rest: str) -> None:
        for word in self._words(line, rest):
            name, separator, value = word.partition("=")
            if separator or name not in self.arguments:
                self.arguments[name] = self._expand(value)

    def _env(self, line: int, rest: str) -> None:
        first = rest.split(None, 1)[0]
        if "=" not in first:
            name, *values = rest.split(None, 1)
            if not values:
                raise self._refuse(line, f"ENV {name} has no value")
            self.env[name] = self._expand(values[0])
            return
        for word in self._words(line, self._expand(rest)):
            name, separator, value = word.partition("=")
            if not separator or not name:
                raise self._refuse(line, f"cannot read ENV {word!r}; expected NAME=value")
            self.env[name] = value

    def _run(self, line: int, rest: str) -> None:
        if rest.startswith("--"):
            raise self._refuse(line, f"RUN flags are not supported: {rest.split()[0]}")
        argv = self._json_array(line, rest) if rest.startswith('["') else None
        if argv is None and re.search(r"<<-?\s*['\"]?\w", rest):
            raise self._refuse(line, "here-documents are not supported; COPY a script")
        env = {**self.arguments, **self.env}
        shell = ("/bin/sh", "-c", rest)
        self.steps.append(Run(line, tuple(argv) if argv else shell, env, self.workdir, self.user))

    def _copy(self, line: int, rest: str) -> None:
        mode: int | None = None
        while rest.startswith("--"):
            flag, *others = rest.split(None, 1)
            mode = self._copy_flag(line, flag, mode)
            rest = others[0] if others else ""
        words = self._json_array(line, rest) or self._words(line, rest)
        words = [self._expand(word) for word in words]
        if len(words) < 2:
            raise self._refuse(line, "COPY needs a source and a destination")
        if any("<<" in word for word in words):
            raise self._refuse(line, "here-documents are not supported")
        *sources, last = words
        into_folder = last.endswith("/") or last in (".", "..") or len(sources) > 1
        if len(sources) > 1 and not (last.endswith("/") or last == "."):
            raise self._refuse(line, f"COPY of several sources needs a folder: end {last!r} with '/'")
        relative = not last.startswith("/")
        self.steps.append(Copy(line, tuple(sources), _join(self.workdir, last), into_folder, mode, relative))

    def _copy_flag(self, line: int, flag: str, mode: int | None) -> int | None:
        name, _, value = flag.partition("=")
        if name not in _COPY_FLAGS:
            raise self._refuse(line, f"COPY {name} is not supported by the local runtime")
        if name == "--chown" and self._expand(value) not in _ROOT_OWNERS:
            raise self._refuse(line, f"COPY --chown={value}: files belong to root here; use RUN chown")
        if name != "--chmod":
            return mode
        if not re.fullmatch(r"[0-7]{3,4}", self._expand(value)):
            raise self._refuse(line, f"COPY --chmod={value}: expected an octal number such as 755")
        return int(self._expand(value), 8)


def _join(folder: str, path: str) -> str:
    """An absolute, normalised path; ".." stops at the root."""
    parts: list[str] = []
    for part in (path if path.startswith("/") else f"{folder}/{path}").split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)
