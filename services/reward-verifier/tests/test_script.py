import pytest

from longshore_reward_verifier.domain.script import normalise_line_ends, script_argv

PATH = "/tests/test.sh"


@pytest.mark.parametrize(
    ("content", "argv"),
    [
        (b"#!/bin/bash\necho\n", ["/bin/bash", PATH]),
        (b"#!/bin/bash\r\necho\r\n", ["/bin/bash", PATH]),
        (b"#!/bin/sh -eu\n", ["/bin/sh", "-eu", PATH]),
        (b"#! /usr/bin/env -S bash -e\n", ["/usr/bin/env", "-S bash -e", PATH]),
        (b"#!/usr/bin/env bash\n", ["/usr/bin/env", "bash", PATH]),
        (b"#!/usr/bin/python3\n", ["/usr/bin/python3", PATH]),
        (b"echo 1 > /logs/verifier/reward.txt\n", ["/bin/sh", PATH]),
        (b"#!\n", ["/bin/sh", PATH]),
        (b"", ["/bin/sh", PATH]),
    ],
)
def test_a_script_is_run_by_its_shebang(content: bytes, argv: list[str]) -> None:
    """SWE-bench#652, pier#18: a CRLF shebang or a lost execute bit must not look like a missing reward."""
    assert script_argv(PATH, content) == argv


def test_crlf_becomes_lf_and_a_lone_cr_stays() -> None:
    assert normalise_line_ends(b"a\r\nb\rc\n") == b"a\nb\rc\n"
