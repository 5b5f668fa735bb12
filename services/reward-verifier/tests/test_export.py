import io
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore_common.bundle import unpack_tar
from longshore_common.errors import InvalidSpec
from longshore_reward_verifier.domain.export import separate_links


def tar_of(*entries: tuple[str, bytes, bytes | str]) -> bytes:
    """Entries of (name, type, content or link target)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, kind, value in entries:
            info = tarfile.TarInfo(name)
            info.type = kind
            if isinstance(value, str):
                info.linkname = value
                tar.addfile(info)
            else:
                info.size = len(value)
                tar.addfile(info, io.BytesIO(value))
    return buffer.getvalue()


def names(archive: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return tar.getnames()


def test_links_that_leave_the_folder_are_set_apart() -> None:
    archive = tar_of(
        ("a.txt", tarfile.REGTYPE, b"x"),
        ("venv/bin/python", tarfile.SYMTYPE, "/usr/bin/python3"),
        ("inner", tarfile.SYMTYPE, "venv/../a.txt"),
        ("up", tarfile.SYMTYPE, "../etc/passwd"),
    )
    kept, links = separate_links(archive, "/app")
    assert names(kept) == ["a.txt", "inner"]
    assert links == (("/usr/bin/python3", "/app/venv/bin/python"), ("../etc/passwd", "/app/up"))


def test_devices_hard_links_and_escaping_entries_are_dropped() -> None:
    archive = tar_of(
        ("a", tarfile.REGTYPE, b"data"),
        ("b", tarfile.LNKTYPE, "a"),
        ("itself", tarfile.LNKTYPE, "itself"),
        ("dev", tarfile.CHRTYPE, ""),
        ("pipe", tarfile.FIFOTYPE, ""),
        ("../evil", tarfile.REGTYPE, b"!"),
        ("/abs", tarfile.REGTYPE, b"!"),
    )
    kept, links = separate_links(archive, "/app")
    assert links == ()
    with tarfile.open(fileobj=io.BytesIO(kept)) as tar:
        assert {m.name: tar.extractfile(m).read() for m in tar} == {"a": b"data"}  # type: ignore[union-attr]


def test_what_is_no_tar_is_refused() -> None:
    with pytest.raises(InvalidSpec):
        separate_links(b"not a tar at all" * 100, "/app")


segment = st.sampled_from(["a", "b", "c", "..", "."])
path = st.lists(segment, min_size=1, max_size=4).map("/".join)


@given(st.lists(st.tuples(path, st.sampled_from([tarfile.SYMTYPE, tarfile.LNKTYPE]), path), max_size=6))
def test_no_kept_link_leaves_the_folder(entries: list[tuple[str, bytes, str]]) -> None:
    try:
        kept, _ = separate_links(tar_of(*entries), "/app")
    except InvalidSpec:
        return
    with tempfile.TemporaryDirectory() as folder:
        refusal = ""
        try:
            unpack_tar(kept, Path(folder) / "app")
        except (InvalidSpec, OSError) as error:
            refusal = str(error)
        # Entries behind a link, or a name twice, are for the upload to refuse; a link that leaves is not in there.
        assert "leaves" not in refusal
        assert "absolute" not in refusal
