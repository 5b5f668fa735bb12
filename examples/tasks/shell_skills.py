"""The shell and text skills that the example tasks exercise: for each, how one content of it is made.

A content is data files, a one-line instruction that names them, the right command, plausible wrong ones, and a check
that looks at the file system only. The expected result is computed here in Python, never by the command that is to be
judged. Data are drawn so that the wrong commands give something else (unsorted lines, columns that differ, ...).
Only the standard library is used.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field

TEXTS = tuple(
    f"{stem}.txt" for stem in ("data", "notes", "poem", "story", "menu", "diary", "letter", "song", "page", "draft")
)
TABLES = tuple(f"{name.removesuffix('.txt')}.csv" for name in TEXTS)
OUTPUTS = ("answer.txt", "out.txt", "result.txt", "final.txt", "report.txt", "saved.txt")
FOLDERS = ("src", "logs", "docs", "old", "temp", "bin", "lib", "work")
SCRIPTS = tuple(f"{stem}.sh" for stem in ("run", "start", "stop", "build", "check", "clean", "setup", "test"))
SUFFIXES = ("log", "cfg", "md", "bak")
COLOURS = ("red", "blue", "green", "pink", "gold", "gray")
WORDS = (
    *("apple", "river", "stone", "cloud", "lamp", "tiger", "bread", "chair", "ocean", "piano", "rocket", "garden"),
    *("window", "pepper", "silver", "forest", "candle", "bridge", "mirror", "button", "planet", "saddle", "violin"),
    *("harbor", "island", "market", "needle", "orange", "pillow", "rabbit"),
)
Maker = Callable[[random.Random, str, str], "Content"]


@dataclass(frozen=True)
class Content:
    """One content of one skill. Paths are relative to the task's working folder."""

    instruction: str
    files: dict[str, str]
    solution: str
    wrong: tuple[str, str, str]
    """Three plausible wrong commands: none of them passes the check."""
    check: str
    """POSIX sh condition, run in the working folder; "$tests" is the folder of the tests."""
    expected: dict[str, str] = field(default_factory=dict)
    """Files that lie beside the test script."""

    def key(self) -> str:
        """Digest of what the task is about, without its name."""
        parts = [self.instruction, repr(sorted(self.files.items())), self.check, repr(sorted(self.expected.items()))]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@dataclass(frozen=True)
class Skill:
    """A skill, the names that its contents are drawn from, and how one is made of a pair of names."""

    name: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    make: Maker

    def pairs(self, split: str) -> list[tuple[str, str]]:
        """The name pairs of a split, the same for every seed: 1/6 of all are held out for test, 1/12 for dev."""
        every = [(a, b) for a in self.first for b in self.second if a != b]
        every.sort(key=lambda pair: hashlib.sha256(f"{self.name}/{pair[0]}/{pair[1]}".encode()).hexdigest())
        test, dev = len(every) // 6, len(every) // 12
        return {"test": every[:test], "dev": every[test : test + dev], "train": every[test + dev :]}[split]


def stem(name: str) -> str:
    """The name without its suffix: the commonest way to get a file name wrong."""
    return name.rsplit(".", 1)[0]


def _line(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def _lines(rng: random.Random, count: int) -> list[str]:
    """Distinct lines of 2 to 4 words; three or more are neither sorted nor sorted backwards."""
    while True:
        lines = list(dict.fromkeys(_line(rng, rng.randint(2, 4)) for _ in range(count)))
        if len(lines) == count and (count < 3 or lines not in (sorted(lines), sorted(lines, reverse=True))):
            return lines


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _number(output: str, value: int) -> str:
    """Accepts "5" and, as wc prints it, "5 data.txt"."""
    return f"""[ "$(awk '{{print $1}}' {output})" = {value} ]"""


def _same(output: str) -> str:
    return f'cmp -s {output} "$tests/expected"'


def _to_number(verb: str, option: str, others: tuple[str, str], value: Callable[[list[str]], int]) -> Maker:
    def make(rng: random.Random, a: str, b: str) -> Content:
        # Never as many lines as the shortest line has letters (9): the counts must all differ.
        lines = _lines(rng, rng.randint(4, 8))
        wrong = (f"wc {others[0]} < {a} > {b}", f"wc {others[1]} < {a} > {b}", f"wc {option} < {stem(a)} > {b}")
        check = _number(b, value(lines))
        return Content(f"{verb} of {a} into {b}", {a: _text(lines)}, f"wc {option} < {a} > {b}", wrong, check)

    return make


def _to_text(
    instruction: str, right: str, wrong: tuple[str, str, str], result: Callable[[list[str], int], str]
) -> Maker:
    """A filter: lines of {a} become a text in {b}; {k} is a small number."""

    def make(rng: random.Random, a: str, b: str) -> Content:
        lines, k = _lines(rng, rng.randint(7, 10)), rng.randint(2, 5)
        names = {"a": a, "b": b, "k": k, "stem": stem(a)}
        commands = tuple(command.format(**names) for command in wrong)
        expected = {"expected": result(lines, k)}
        check = _same(b)
        first, second, third = commands
        text, solution = {a: _text(lines)}, right.format(**names)
        return Content(instruction.format(**names), text, solution, (first, second, third), check, expected)

    return make


def _unique_lines(rng: random.Random, a: str, b: str) -> Content:
    lines = _lines(rng, 5)
    # The repeats are never neighbours, so that `uniq` alone does not find them.
    text = _text([*lines, lines[0], lines[2]])
    wrong = (f"uniq {a} > {b}", f"sort {a} > {b}", f"sort -u {stem(a)} > {b}")
    check = f'sort {b} | cmp -s - "$tests/expected"'
    instruction = f"Write each line of {a} once into {b}"
    return Content(instruction, {a: text}, f"sort -u {a} > {b}", wrong, check, {"expected": _text(sorted(lines))})


def _grep_word(rng: random.Random, a: str, b: str) -> Content:
    word = rng.choice(COLOURS)
    lines = _lines(rng, 7)
    for index in rng.sample(range(7), 3):
        lines[index] += f" {word}"
    wrong = (f"grep -v {word} {a} > {b}", f"grep -c {word} {a} > {b}", f"grep {a} {word} > {b}")
    expected = _text([line for line in lines if word in line])
    instruction = f"Write the lines of {a} with {word} into {b}"
    return Content(instruction, {a: _text(lines)}, f"grep {word} {a} > {b}", wrong, _same(b), {"expected": expected})


def _replace_word(rng: random.Random, a: str, b: str) -> Content:
    old, new = rng.sample(COLOURS, 2)
    lines = _lines(rng, 6)
    for index in rng.sample(range(6), 3):
        lines[index] = f"{old} {lines[index]} {old}"
    text = _text(lines)
    wrong = (f"sed s/{new}/{old}/g {a} > {b}", f"grep {old} {a} > {b}", f"tr {old} {new} < {stem(a)} > {b}")
    instruction = f"Write {a} with {old} replaced by {new} into {b}"
    return Content(
        instruction, {a: text}, f"sed s/{old}/{new}/g {a} > {b}", wrong, _same(b), {"expected": text.replace(old, new)}
    )


def _delete_letter(rng: random.Random, a: str, b: str) -> Content:
    letter = rng.choice("aeiour")
    # The last line lacks the letter, so that dropping whole lines gives a text, but another one.
    lines = [*(f"{line} {letter}{letter}" for line in _lines(rng, 5)), "why"]
    text = _text(lines)
    wrong = (f"grep -v {letter} {a} > {b}", f"tr -s {letter} < {a} > {b}", f"tr {letter} < {a} > {b}")
    instruction = f"Write {a} without the letter {letter} into {b}"
    expected = {"expected": text.replace(letter, "")}
    return Content(instruction, {a: text}, f"tr -d {letter} < {a} > {b}", wrong, _same(b), expected)


def _column(rng: random.Random, a: str, b: str) -> Content:
    k = rng.randint(2, 3)
    rows = [rng.sample(WORDS, 4) for _ in range(rng.randint(4, 7))]
    other = 5 - k
    wrong = (f"cut -f{k} {a} > {b}", f"cut -d, -f{other} {a} > {b}", f"cut -d, -f{k} {stem(a)} > {b}")
    expected = {"expected": _text([row[k - 1] for row in rows])}
    files = {a: _text([",".join(row) for row in rows])}
    return Content(f"Write column {k} of {a} into {b}", files, f"cut -d, -f{k} {a} > {b}", wrong, _same(b), expected)


def _sum_column(rng: random.Random, a: str, b: str) -> Content:
    while True:
        rows = [(rng.randint(2, 40), rng.randint(2, 40)) for _ in range(rng.randint(4, 7))]
        total, other = sum(row[1] for row in rows), sum(row[0] for row in rows)
        if total not in (other, rows[0][1], rows[-1][1]):
            break
    wrong = (
        f"awk '{{s+=$1}}END{{print s}}' {a} > {b}",
        f"awk '{{print $2}}' {a} > {b}",
        f"awk '{{s+=$2}}END{{print s}}' {stem(a)} > {b}",
    )
    files = {a: _text([f"{left} {right}" for left, right in rows])}
    right = f"awk '{{s+=$2}}END{{print s}}' {a} > {b}"
    return Content(f"Add up column 2 of {a} into {b}", files, right, wrong, _number(b, total))


def _number_lines(rng: random.Random, a: str, b: str) -> Content:
    lines = _lines(rng, rng.randint(4, 8))
    # Whatever stands between number and line is accepted: cat -n, nl and grep -n differ there.
    check = f"""sed 's/^ *\\([0-9][0-9]*\\)[[:space:]:.)]*/\\1 /' {b} | cmp -s - "$tests/expected\""""
    wrong = (f"cat {a} > {b}", f"wc -l < {a} > {b}", f"cat -n {stem(a)} > {b}")
    expected = {"expected": _text([f"{index} {line}" for index, line in enumerate(lines, 1)])}
    return Content(f"Number the lines of {a} into {b}", {a: _text(lines)}, f"cat -n {a} > {b}", wrong, check, expected)


def _copy_file(rng: random.Random, a: str, b: str) -> Content:
    text = _text(_lines(rng, 3))
    check = f'[ ! -L {b} ] && cmp -s {a} "$tests/expected" && cmp -s {b} "$tests/expected"'
    wrong = (f"mv {a} {b}", f"cp {b} {a}", f"ln -s {a} {b}")
    return Content(f"Copy {a} to {b}", {a: text}, f"cp {a} {b}", wrong, check, {"expected": text})


def _move_file(rng: random.Random, a: str, b: str) -> Content:
    text = _text(_lines(rng, 3))
    check = f'[ ! -e {a} ] && [ ! -L {b} ] && cmp -s {b} "$tests/expected"'
    wrong = (f"cp {a} {b}", f"mv {b} {a}", f"rm {a}")
    return Content(f"Rename {a} to {b}", {a: text}, f"mv {a} {b}", wrong, check, {"expected": text})


def _delete_files(rng: random.Random, a: str, b: str) -> Content:
    files = {a: _text(_lines(rng, 2)), b: _text(_lines(rng, 2)), "keep.txt": _text(_lines(rng, 2))}
    check = f'[ ! -e {a} ] && [ ! -e {b} ] && cmp -s keep.txt "$tests/expected"'
    wrong = (f"rm {a}", f"rm {b}", f"rmdir {a} {b}")
    return Content(f"Delete {a} and {b}", files, f"rm {a} {b}", wrong, check, {"expected": files["keep.txt"]})


def _make_folder(rng: random.Random, a: str, b: str) -> Content:
    wrong = (f"mkdir {a} {b}", f"mkdir {a}/{b}", f"mkdir -p {a}")
    check = f"[ -d {a}/{b} ] && [ ! -e {b} ]"
    return Content(f"Make the folder {a}/{b}", {"readme.txt": _text(_lines(rng, 2))}, f"mkdir -p {a}/{b}", wrong, check)


def _join_files(rng: random.Random, a: str, b: str) -> Content:
    first, second = _text(_lines(rng, 3)), _text(_lines(rng, 2))
    wrong = (f"cat {b} {a} > all.txt", f"cat {a} > all.txt", f"cp {a} {b} all.txt")
    right, check = f"cat {a} {b} > all.txt", _same("all.txt")
    files, expected = {a: first, b: second}, {"expected": first + second}
    return Content(f"Join {a} and {b} into all.txt", files, right, wrong, check, expected)


def _make_executable(rng: random.Random, a: str, b: str) -> Content:
    files = {name: f"#!/bin/sh\necho {_line(rng, 2)}\n" for name in (a, b)}
    wrong = (f"chmod +x {a}", f"chmod +r {a} {b}", f"chmod {a} {b}")
    check = f"[ -f {a} ] && [ -x {a} ] && [ -f {b} ] && [ -x {b} ]"
    return Content(f"Make {a} and {b} executable", files, f"chmod +x {a} {b}", wrong, check)


def _list_files(rng: random.Random, a: str, b: str) -> Content:
    names = sorted(f"{word}.{rng.choice(SUFFIXES)}" for word in rng.sample(WORDS, rng.randint(3, 5)))
    files = {f"{a}/{name}": f"{rng.choice(WORDS)}\n" for name in names}
    check = f"""tr -s ' ' '\\n' < {b} | sort | cmp -s - "$tests/expected\""""
    wrong = (f"ls > {b}", f"ls -l {a} > {b}", f"cat {a} > {b}")
    return Content(f"List the files of {a} into {b}", files, f"ls {a} > {b}", wrong, check, {"expected": _text(names)})


def _find_suffix(rng: random.Random, a: str, b: str) -> Content:
    suffix, other = rng.sample(SUFFIXES, 2)
    words = rng.sample(WORDS, 6)
    inner = f"{a}/{words[4]}"
    wanted = [f"{a}/{words[0]}.{suffix}", f"{inner}/{words[1]}.{suffix}", f"{inner}/{words[5]}/{words[2]}.{suffix}"]
    paths = [*wanted, f"{a}/{words[3]}.{other}", f"{inner}/{words[3]}.{other}"]
    files = {path: f"{rng.choice(WORDS)}\n" for path in paths}
    check = f"""sed 's|.*/||' {b} | sort | cmp -s - "$tests/expected\""""
    wrong = (f"find {a} > {b}", f"ls {a} > {b}", f"ls *.{suffix} > {b}")
    right = f"find {a} -name '*.{suffix}' > {b}"
    expected = {"expected": _text(sorted(path.rsplit("/", 1)[1] for path in wanted))}
    return Content(f"Find the .{suffix} files below {a} into {b}", files, right, wrong, check, expected)


_COUNT_LINES = _to_number("Count the lines", "-l", ("-w", "-c"), len)
_COUNT_WORDS = _to_number("Count the words", "-w", ("-l", "-c"), lambda lines: sum(len(line.split()) for line in lines))
_COUNT_BYTES = _to_number("Count the bytes", "-c", ("-l", "-w"), lambda lines: len(_text(lines)))
_LONGEST = _to_number("Write the longest line length", "-L", ("-l", "-c"), lambda lines: max(map(len, lines)))
_SORT = _to_text(
    "Sort {a} into {b}", "sort {a} > {b}", ("sort -r {a} > {b}", "uniq {a} > {b}", "sort {stem} > {b}"),
    lambda lines, _: _text(sorted(lines)),
)  # fmt: skip
_FIRST_LINES = _to_text(
    "Write the first {k} lines of {a} into {b}", "head -n {k} {a} > {b}",
    ("tail -n {k} {a} > {b}", "head -c {k} {a} > {b}", "head -n {k} {stem} > {b}"),
    lambda lines, k: _text(lines[:k]),
)  # fmt: skip
_LAST_LINES = _to_text(
    "Write the last {k} lines of {a} into {b}", "tail -n {k} {a} > {b}",
    ("head -n {k} {a} > {b}", "tail -c {k} {a} > {b}", "tail -n {k} {stem} > {b}"),
    lambda lines, k: _text(lines[-k:]),
)  # fmt: skip
_FIRST_BYTES = _to_text(
    "Write the first {k} bytes of {a} into {b}", "head -c {k} {a} > {b}",
    ("head -n {k} {a} > {b}", "tail -c {k} {a} > {b}", "head -c {k} {stem} > {b}"),
    lambda lines, k: _text(lines)[:k],
)  # fmt: skip
_REVERSE = _to_text(
    "Reverse the lines of {a} into {b}", "tac {a} > {b}", ("sort -r {a} > {b}", "cat {a} > {b}", "tac {stem} > {b}"),
    lambda lines, _: _text(lines[::-1]),
)  # fmt: skip
_UPPER = _to_text(
    "Write {a} in upper case into {b}", "tr a-z A-Z < {a} > {b}",
    ("tr A-Z a-z < {a} > {b}", "cat {a} > {b}", "tr a-z A-Z {a} > {b}"),
    lambda lines, _: _text(lines).upper(),
)  # fmt: skip

SKILLS: tuple[Skill, ...] = (
    Skill("count-lines", TEXTS, OUTPUTS, _COUNT_LINES),
    Skill("count-words", TEXTS, OUTPUTS, _COUNT_WORDS),
    Skill("count-bytes", TEXTS, OUTPUTS, _COUNT_BYTES),
    Skill("longest-line", TEXTS, OUTPUTS, _LONGEST),
    Skill("sort-lines", TEXTS, OUTPUTS, _SORT),
    Skill("unique-lines", TEXTS, OUTPUTS, _unique_lines),
    Skill("first-lines", TEXTS, OUTPUTS, _FIRST_LINES),
    Skill("last-lines", TEXTS, OUTPUTS, _LAST_LINES),
    Skill("first-bytes", TEXTS, OUTPUTS, _FIRST_BYTES),
    Skill("reverse-lines", TEXTS, OUTPUTS, _REVERSE),
    Skill("number-lines", TEXTS, OUTPUTS, _number_lines),
    Skill("grep-word", TEXTS, OUTPUTS, _grep_word),
    Skill("replace-word", TEXTS, OUTPUTS, _replace_word),
    Skill("delete-letter", TEXTS, OUTPUTS, _delete_letter),
    Skill("upper-case", TEXTS, OUTPUTS, _UPPER),
    Skill("column", TABLES, OUTPUTS, _column),
    Skill("sum-column", TEXTS, OUTPUTS, _sum_column),
    Skill("join-files", TEXTS, OUTPUTS, _join_files),
    Skill("copy-file", TEXTS, OUTPUTS, _copy_file),
    Skill("move-file", TEXTS, OUTPUTS, _move_file),
    Skill("delete-files", TEXTS, OUTPUTS, _delete_files),
    Skill("make-folder", FOLDERS, ("one", "two", "new", "data", "in", "out"), _make_folder),
    Skill("make-executable", SCRIPTS, SCRIPTS, _make_executable),
    Skill("list-files", FOLDERS, OUTPUTS, _list_files),
    Skill("find-suffix", FOLDERS, OUTPUTS, _find_suffix),
)
