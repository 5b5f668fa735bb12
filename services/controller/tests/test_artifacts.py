"""Artifacts: whole or not at all, and never changed under a run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from longshore_common.bundle import pack_tar
from longshore_common.clock import SystemClock
from longshore_common.digests import digest_bytes, tree_digest
from longshore_common.errors import Conflict, InvalidSpec, NotFound, QuotaExceeded
from longshore_controller.application.artifacts import ArtifactService
from longshore_controller.clients.artifact_store import FolderArtifactStore
from longshore_controller.domain.artifacts import ArtifactHeader, ArtifactKind, check_name
from longshore_controller.domain.vocabulary import RunState

from .builders import SPEC
from .conftest import MAX_ARTIFACT_BYTES, Harbor, Living


@pytest.fixture
async def living(harbor: Harbor) -> AsyncIterator[Living]:
    async with harbor.controller(worker=False, serve=False) as found:
        yield found


@pytest.fixture
def service(living: Living) -> ArtifactService:
    return living.parts.application.artifacts


def tree(tmp_path: Path, files: Mapping[str, str]) -> tuple[str, bytes]:
    """Digest and tar of a folder of these files."""
    root = tmp_path / "made" / digest_bytes(repr(files).encode())[7:15]
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return tree_digest(root), pack_tar(root)


async def blocks(data: bytes, size: int = 1000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def unread() -> AsyncIterator[bytes]:
    raise AssertionError("the data was read")
    yield b""


def file_header(name: str, data: bytes) -> ArtifactHeader:
    return ArtifactHeader(name, ArtifactKind.FILE, digest_bytes(data))


async def test_a_file_and_a_tree_arrive_and_are_listed(service: ArtifactService, harbor: Harbor) -> None:
    data = b"line\n" * 1000
    listed, changed = await service.put(file_header("demo/lines.jsonl", data), blocks(data))
    assert (listed.stored.bytes, listed.stored.files, changed) == (5000, 1, True)
    digest, tar = tree(harbor.root, {"config.json": "{}", "deep/weights": "w" * 3000})
    await service.put(ArtifactHeader("demo/model", ArtifactKind.TREE, digest), blocks(tar))
    assert (harbor.root / "demo/lines.jsonl").read_bytes() == data
    assert tree_digest(harbor.root / "demo/model") == digest
    found = await service.listed()
    assert [(one.stored.name, one.stored.kind, one.stored.files) for one in found] == [
        ("demo/lines.jsonl", "file", 1), ("demo/model", "tree", 2),
    ]  # fmt: skip
    assert not list((harbor.root / ".longshore-artifacts/incoming").iterdir())


async def test_the_same_again_is_answered_without_its_data_and_other_content_replaces_it(
    service: ArtifactService, harbor: Harbor
) -> None:
    await service.put(file_header("a", b"one"), blocks(b"one"))
    _, changed = await service.put(file_header("a", b"one"), unread())
    assert not changed
    digest, tar = tree(harbor.root, {"x": "y"})
    _, changed = await service.put(ArtifactHeader("a", ArtifactKind.TREE, digest), blocks(tar))
    assert changed
    assert (harbor.root / "a/x").read_text() == "y"


async def test_what_is_not_what_the_header_says_changes_nothing(service: ArtifactService, harbor: Harbor) -> None:
    await service.put(file_header("a", b"one"), blocks(b"one"))
    with pytest.raises(InvalidSpec, match="artifact a: what came has digest"):
        await service.put(file_header("a", b"two"), blocks(b"tw"))
    with pytest.raises(InvalidSpec, match="no uncompressed tar"):
        await service.put(ArtifactHeader("b", ArtifactKind.TREE, digest_bytes(b"")), blocks(b"no tar" * 1000))
    with pytest.raises(QuotaExceeded, match="larger than 4 MiB"):
        large = b"x" * (MAX_ARTIFACT_BYTES + 1)
        await service.put(file_header("b", large), blocks(large, 1024 * 1024))
    assert (harbor.root / "a").read_bytes() == b"one"
    assert [one.stored.name for one in await service.listed()] == ["a"]
    assert not list((harbor.root / ".longshore-artifacts/incoming").iterdir())


async def test_a_run_that_has_not_ended_keeps_its_artifacts(
    service: ArtifactService, harbor: Harbor, living: Living
) -> None:
    digest, tar = tree(harbor.root, {"config.json": "{}"})
    header = ArtifactHeader("model", ArtifactKind.TREE, digest)
    await service.put(header, blocks(tar))
    await service.put(file_header("demonstrations.jsonl", b"d"), blocks(b"d"))
    run = await living.submit(SPEC)
    assert [one.used_by for one in await service.listed()] == [[run.run_id], [run.run_id]]
    assert not (await service.put(header, unread()))[1]
    with pytest.raises(Conflict, match=f"model is used by {run.run_id}, which has not ended: replace it afterwards"):
        await service.put(file_header("model", b"other"), unread())
    with pytest.raises(Conflict, match="artifact demonstrations"):
        await service.remove("demonstrations.jsonl")
    await living.parts.manager.stop(run.run_id, "enough")
    assert (await living.until(run.run_id, RunState.STOPPED)).state is RunState.STOPPED
    await service.remove("demonstrations.jsonl")
    assert [one.stored.name for one in await service.listed()] == ["model"]


async def test_names_in_each_other_and_places_of_others_are_refused(service: ArtifactService, harbor: Harbor) -> None:
    await service.put(file_header("demo/a", b"1"), blocks(b"1"))
    for name in ("demo", "demo/a/b"):
        with pytest.raises(Conflict, match="would lie in each other"):
            await service.put(file_header(name, b"1"), unread())
    (harbor.root / "mine").write_text("kept")
    with pytest.raises(Conflict, match="mine is there and was not pushed"):
        await service.put(file_header("mine", b"1"), unread())
    with pytest.raises(Conflict, match="a file is in the way"):
        await service.put(file_header("mine/below", b"1"), blocks(b"1"))
    assert (harbor.root / "mine").read_text() == "kept"


async def test_removing_takes_emptied_folders_along_and_says_what_is_not_there(
    service: ArtifactService, harbor: Harbor
) -> None:
    digest, tar = tree(harbor.root, {"x": "y"})
    await service.put(ArtifactHeader("one/two/model", ArtifactKind.TREE, digest), blocks(tar))
    await service.remove("one/two/model")
    assert not (harbor.root / "one").exists()
    with pytest.raises(NotFound, match="no artifact 'one/two/model'"):
        await service.remove("one/two/model")


async def test_what_an_earlier_process_left_half_received_goes(harbor: Harbor) -> None:
    left = harbor.root / ".longshore-artifacts/incoming/left"
    left.mkdir(parents=True)
    store = FolderArtifactStore(harbor.root, SystemClock(), 1000)
    async with store.received(file_header("a", b"1"), blocks(b"1")):
        assert not left.exists()


@pytest.mark.parametrize("name", ["", "/a", "a/../b", "..", ".hidden", "a//b", "a/", "a b", "ä", "/".join("a" * 9)])
def test_unsafe_names(name: str) -> None:
    with pytest.raises(InvalidSpec, match="no name for an artifact"):
        check_name(name)
    check_name("demo/model-1.5_B")


def test_a_digest_must_be_one() -> None:
    with pytest.raises(InvalidSpec, match="expected sha256:"):
        ArtifactHeader("a", ArtifactKind.FILE, "abc")
