"""Bundles are deterministic and cannot write outside their folder."""

import io
import tarfile
from pathlib import Path

import pytest
import zstandard

from longshore_common.bundle import pack_folder, unpack
from longshore_common.digests import tree_digest
from longshore_common.errors import InvalidSpec


def tar_of(*members: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return zstandard.compress(buffer.getvalue())


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, 1 if kind == tarfile.REGTYPE else 0
    return info


def test_round_trip_keeps_the_tree_digest(tmp_path: Path):
    source = tmp_path / "source"
    (source / "a").mkdir(parents=True)
    (source / "a" / "run.sh").write_text("echo")
    (source / "a" / "run.sh").chmod(0o755)
    (source / "link").symlink_to("a/run.sh")
    packed = pack_folder(source)
    unpack(packed, tmp_path / "copy")
    assert tree_digest(tmp_path / "copy") == tree_digest(source)
    assert pack_folder(tmp_path / "copy") == packed


@pytest.mark.parametrize(
    "members",
    [
        [entry("../x")],
        [entry("/etc/x")],
        [entry("a/../../x")],
        [entry("l", tarfile.SYMTYPE, "/etc")],
        [entry("a/l", tarfile.SYMTYPE, "../../x")],
        [entry("l", tarfile.SYMTYPE, "a"), entry("l/x")],
        [entry("d", tarfile.CHRTYPE)],
        [entry("h", tarfile.LNKTYPE, "x")],
        [entry("p", tarfile.FIFOTYPE)],
    ],
    ids=[
        "parent",
        "absolute",
        "inner-parent",
        "absolute-link",
        "escaping-link",
        "behind-link",
        "device",
        "hard",
        "fifo",
    ],
)
def test_entries_that_leave_the_folder_are_refused_before_anything_is_written(members, tmp_path: Path):
    with pytest.raises(InvalidSpec):
        unpack(tar_of(entry("ok"), *members), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_not_zstd_is_refused(tmp_path: Path):
    with pytest.raises(InvalidSpec, match="not zstd"):
        unpack(b"plain", tmp_path)
