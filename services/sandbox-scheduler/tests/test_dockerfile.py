"""What of a Dockerfile is honoured, and that nothing is skipped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore_common.errors import InvalidSpec
from longshore_sandbox_scheduler.domain.dockerfile import NO_EFFECT, Copy, MakeFolder, Run, parse


def test_the_usual_file() -> None:
    file = parse(
        "# a comment\nFROM longshore/base AS x\n\nENV A=1 B='two words'\nENV C three words\nWORKDIR /app\n"
        "COPY --chmod=755 a.sh b*.txt ./bin/\nWORKDIR sub\nRUN echo a && \\\n  # inside\n  echo $A\n"
        'RUN ["prog", "a b"]\nUSER nobody\nCMD ["bash"]\nLABEL x=y\n'
    )
    assert (file.base, file.base_line, file.workdir, file.user) == ("longshore/base", 2, "/app/sub", "nobody")
    assert file.env == {"A": "1", "B": "two words", "C": "three words"}
    assert file.steps == (
        MakeFolder(6, "/app"),
        Copy(7, ("a.sh", "b*.txt"), "/app/bin", True, 0o755, relative=True),
        MakeFolder(8, "/app/sub"),
        Run(9, ("/bin/sh", "-c", "echo a &&   echo $A"), file.env, "/app/sub", ""),
        Run(12, ("prog", "a b"), file.env, "/app/sub", ""),
    )


def test_arguments_and_variables() -> None:
    file = parse(
        "ARG V=base\nFROM longshore/$V\nARG DIR=/data\nARG NONE\nENV X=${DIR}/x\nWORKDIR ${DIR:-/no}\n"
        "COPY a ${NONE:-/d}/\nENV Y=\\$X\n"
    )
    assert (file.base, file.workdir, file.env) == ("longshore/base", "/data", {"X": "/data/x", "Y": "$X"})
    assert file.steps[1] == Copy(7, ("a",), "/d", True)


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("FROM a\r\nWORKDIR /x\n", 1, "CRLF"),
        ("FROM a\nADD http://x/y /z\n", 2, "ADD"),
        ("FROM a\nHEALTHCHECK CMD true\n", 2, "HEALTHCHECK"),
        ("FROM a\nFROM b\n", 2, "multi-stage"),
        ("FROM a\nCOPY --from=b x /y\n", 2, "--from"),
        ("FROM a\nCOPY --chown=bob x /y\n", 2, "--chown"),
        ("FROM a\nRUN --mount=type=cache true\n", 2, "--mount"),
        ("FROM a\nRUN <<EOF\necho\nEOF\n", 2, "here-doc"),
        ('FROM a\n\nSHELL ["bash"]\n', 3, "SHELL"),
        ("FROM a\nVOLUME /x\n", 2, "VOLUME"),
        ("FROM a\nENV A\n", 2, "ENV"),
        ("FROM a\nCOPY one\n", 2, "destination"),
        ("FROM a\nCOPY a b /c\n", 2, "folder"),
        ("FROM a\nRUNN x\n", 2, "RUNN"),
        ("FROM a\nWORKDIR\n", 2, "argument"),
        ("FROM a\nRUN x \\\n", 2, "backslash"),
        ("RUN x\n", 1, "before FROM"),
        ("\n", 1, "no FROM"),
        ("# escape=`\nFROM a\n", 1, "escape"),
        ('FROM a\nRUN ["x", 1]\n', 2, "JSON"),
        ("FROM a\nCOPY 'x /y\n", 2, "cannot read"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_its_line(text: str, line: int, word: str) -> None:
    with pytest.raises(InvalidSpec, match=word) as caught:
        parse(text)
    assert caught.value.field == f"environment/Dockerfile:{line}"


@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=40))
def test_an_unknown_instruction_is_never_skipped(line: str) -> None:
    known = {"FROM", "WORKDIR", "COPY", "ENV", "RUN", "USER", "ARG"} | NO_EFFECT
    words = line.split()
    if not words or words[0].startswith("#") or words[0].upper() in known or line.rstrip().endswith("\\"):
        return
    with pytest.raises(InvalidSpec):
        parse(f"FROM a\n{line}\n")
