"""Layers: what a Dockerfile's COPY lines bring to a base that only the cluster has."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from longshore_common.errors import InvalidSpec, NotFound
from longshore_sandbox_scheduler.domain.dockerfile import parse
from longshore_sandbox_scheduler.runtimes.pod.layers import Layers, make_layer, needs_layer

MIB = 1024 * 1024


def context(tmp_path: Path, **files: str) -> Path:
    for name, text in files.items():
        path = tmp_path / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def members(tar: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(tar)) as opened:
        return {member.name: member for member in opened.getmembers()}


def test_copy_makes_root_owned_files_with_their_modes_and_only_empty_folders(tmp_path: Path) -> None:
    root = context(tmp_path, files__a="A", files__deep__b="BB", tool="#!/bin/sh\n")
    (root / "tool").chmod(0o755)
    (root / "files/link").symlink_to("a")
    file = parse(
        "FROM base\nWORKDIR /app\nCOPY files/ /app/\nCOPY tool bin/\nCOPY --chmod=600 files/a /etc/secret\n"
        "WORKDIR /empty\n"
    )
    found = members(make_layer(file, root, MIB))
    assert {name: oct(one.mode) for name, one in found.items() if one.isreg()} == {
        "app/a": "0o644", "app/bin/tool": "0o755", "app/deep/b": "0o644", "etc/secret": "0o600",
    }  # fmt: skip
    assert [name for name, one in found.items() if one.isdir()] == ["empty"]
    assert found["app/link"].linkname == "a"
    assert {(one.uid, one.gid, one.mtime) for one in found.values()} == {(0, 0, 0)}


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    file = parse("FROM base\nCOPY . /app/\n")
    one = make_layer(file, context(tmp_path / "one", b="B", a="A"), MIB)
    assert one == make_layer(file, context(tmp_path / "two", a="A", b="B"), MIB)
    assert one != make_layer(file, context(tmp_path / "three", a="A", b="C"), MIB)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FROM base\nCOPY absent /x\n", "Dockerfile:2: COPY: absent matches nothing"),
        ("FROM base\n\nCOPY a there\n", "Dockerfile:3: COPY to a relative place needs a WORKDIR"),
        ("FROM base\nCOPY a /x\nCOPY a /x/y\n", "Dockerfile:3: /x is a file"),
    ],
)
def test_refusals_name_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        make_layer(parse(text), context(tmp_path, a="A"), MIB)


def test_too_much_and_dockerignore_are_refused(tmp_path: Path) -> None:
    file = parse("FROM base\nCOPY a /a\n")
    with pytest.raises(InvalidSpec, match="bring 3 MiB, more than the 2 MiB"):
        make_layer(file, context(tmp_path, a="x" * 3 * MIB), 2 * MIB)
    (tmp_path / ".dockerignore").touch()
    with pytest.raises(InvalidSpec, match="dockerignore is not supported"):
        make_layer(file, tmp_path, 4 * MIB)


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("FROM base\nENV A=1\nUSER me\nWORKDIR /app\nWORKDIR sub\n", False),
        ("FROM base\nWORKDIR /one\nWORKDIR /two\n", True),
        ("FROM base\nWORKDIR /app\nCOPY a .\n", True),
    ],
)
def test_a_layer_is_needed_for_files_and_folders_that_the_agent_does_not_make(text: str, needed: bool) -> None:
    assert needs_layer(parse(text)) is needed


async def test_layers_are_made_once_per_environment_and_again_beyond_the_bound() -> None:
    made: list[str] = []

    async def make(name: str, size: int) -> bytes:
        made.append(name)
        return name.encode() * size

    layers = Layers(max_bytes=10)
    one, first = await layers.find("env-1", lambda: make("1", 6))
    assert (await layers.find("env-1", lambda: make("never", 1)), first) == ((one, False), True)
    assert await layers.tar(one) == b"111111"
    two, _ = await layers.find("env-2", lambda: make("2", 6))
    assert await layers.tar(two) == b"222222"
    assert made == ["1", "2"]
    assert await layers.tar(one) == b"111111"
    assert made == ["1", "2", "1"]
    with pytest.raises(NotFound, match="sha256:absent"):
        await layers.tar("sha256:absent")
