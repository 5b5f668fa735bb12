import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore_common.errors import Conflict, Internal, QuotaExceeded
from longshore_trainer.store.checkpoints import (
    CheckpointStore,
    Manifest,
    StoredFolder,
    is_disk_full,
    publish_folder,
    require_same_run,
)

NOWHERE = StoredFolder(path="", digest="")


def write(store: CheckpointStore, step: int, incarnation: int = 1, size: int = 10) -> Manifest:
    with store.staging(step, owner=True) as staging:
        for part in ("policy", "state"):
            (staging / part).mkdir()
            (staging / part / "weights").write_bytes(os.urandom(size))
        manifest = Manifest(
            run_id="run",
            incarnation=incarnation,
            step=step,
            version=step,
            policy=store.adopt_policy(staging / "policy", step),
            state=store.adopt_state(staging / "state", step),
            weights_digest="w",
            config_digest="c",
            consumed_group_ids=tuple(f"g{i}" for i in range(step)),
        )
        store.commit(manifest)
    return manifest


def test_newest_manifest_comes_back(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, 1)
    assert store.open() is None
    write(store, 1)
    last = write(store, 2)
    assert CheckpointStore(tmp_path, 2).open() == last
    assert list(tmp_path.glob(".tmp-*")) == []


def test_unfinished_checkpoints_are_ignored_and_removed(tmp_path: Path) -> None:
    """What SIGKILL leaves between any two renames: temporary folders, and folders that no manifest names."""
    store = CheckpointStore(tmp_path, 1)
    store.open()
    good = write(store, 1)
    for name in (".tmp-s2-i1/state", "adapters/v2-i1", "states/s2-i1"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "weights").write_bytes(b"half")
    (tmp_path / "manifests" / "s2-i1.json.tmp").write_text("{")
    (tmp_path / "v0").mkdir()
    assert CheckpointStore(tmp_path, 2).open() == good
    assert sorted(p.name for p in tmp_path.iterdir()) == ["adapters", "manifests", "states", "v0"]
    assert [p.name for p in (tmp_path / "adapters").iterdir()] == ["v1-i1"]
    assert [p.name for p in (tmp_path / "manifests").iterdir()] == ["s1-i1.json"]


def test_pruning_keeps_policies_that_may_be_served(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, 1)
    store.open()
    for step in range(1, 6):
        write(store, step)
        store.prune(keep=2)
    assert sorted(p.name for p in (tmp_path / "states").iterdir()) == ["s4-i1", "s5-i1"]
    assert len(list((tmp_path / "adapters").iterdir())) == 5
    assert CheckpointStore(tmp_path, 2).open() is not None


def test_a_newer_incarnation_wins_over_a_zombies_later_step(tmp_path: Path) -> None:
    old, new = CheckpointStore(tmp_path, 1), CheckpointStore(tmp_path, 2)
    old.open()
    write(old, 1)
    new.open()
    ours = write(new, 2, incarnation=2)
    write(old, 2)
    write(old, 3)
    assert CheckpointStore(tmp_path, 3).open() == ours


def test_changed_content_is_not_resumed_from(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, 1)
    store.open()
    write(store, 1)
    (tmp_path / "states" / "s1-i1" / "weights").write_bytes(b"other")
    with pytest.raises(Internal, match="s1-i1"):
        CheckpointStore(tmp_path, 2).open()


def test_a_torn_manifest_is_named(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, 1)
    store.open()
    write(store, 1)
    (tmp_path / "manifests" / "s2-i1.json").write_text("{")
    with pytest.raises(Internal, match=r"s2-i1\.json"):
        CheckpointStore(tmp_path, 2).open()


def test_another_run_or_configuration_is_refused(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, 1)
    store.open()
    manifest = write(store, 1)
    require_same_run(manifest, "run", "c")
    with pytest.raises(Conflict, match="run run"):
        require_same_run(manifest, "other", "c")
    with pytest.raises(Conflict, match="another configuration"):
        require_same_run(manifest, "run", "other")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A 256 KiB file system."""
    target = tmp_path / "disk"
    target.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(target)], capture_output=True, check=False
    )
    if not mounted or mounted.returncode != 0:
        pytest.skip("needs the right to mount a tmpfs")
    yield target
    subprocess.run(["umount", str(target)], check=True)


def test_full_disk_is_one_clear_error_and_the_old_manifest_stays_good(small_disk: Path) -> None:
    store = CheckpointStore(small_disk, 1)
    store.open()
    good = write(store, 1)
    with pytest.raises(QuotaExceeded, match="no space left") as caught:
        write(store, 2, size=200_000)
    assert caught.value.which == "disk"
    assert list(small_disk.glob(".tmp-*")) == []
    assert CheckpointStore(small_disk, 2).open() == good


def test_full_disk_while_torch_writes(small_disk: Path) -> None:
    """torch and safetensors wrap ENOSPC in exception types of their own."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    big = {"w": torch.zeros(200_000)}
    for write_big in (lambda path: torch.save(big, path / "o.pt"), lambda path: save_file(big, path / "w.safetensors")):
        with pytest.raises(QuotaExceeded):
            publish_folder(write_big, small_disk / "v0")
        assert list(small_disk.iterdir()) == []


def test_other_errors_are_not_called_a_full_disk() -> None:
    assert not is_disk_full(FileNotFoundError("x"))


def test_publish_folder_is_all_or_nothing(tmp_path: Path) -> None:
    def broken(folder: Path) -> None:
        (folder / "a").write_text("a")
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError):
        publish_folder(broken, tmp_path / "v0")
    assert list(tmp_path.iterdir()) == []
