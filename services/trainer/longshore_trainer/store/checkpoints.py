"""Checkpoints of a job in a folder. A manifest makes one count: it is written last, and names all the others by digest.

    adapters/v<N>-i<K>/       policy of version N, written by incarnation K; kept, because an engine may still load it
    states/s<N>-i<K>/         weights, optimizer and random state after step N; only the newest few are kept
    manifests/s<N>-i<K>.json  step, version, ledger, digests

Everything is written beside its place and renamed, after fsync. What no manifest names was never published and is
removed when a job starts.
"""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from longshore_common.digests import tree_digest
from longshore_common.errors import Conflict, Internal, LongshoreError, QuotaExceeded
from longshore_common.log import get_logger

log = get_logger(__name__)


class StoredFolder(BaseModel):
    """A folder under the store's root and its tree digest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    digest: str


class Manifest(BaseModel):
    """All that a resumed job needs to know."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = 1
    run_id: str
    incarnation: Annotated[int, Field(ge=1)]
    step: Annotated[int, Field(ge=0)]
    version: Annotated[int, Field(ge=0)]
    policy: StoredFolder | None
    """Absent for a warm start's checkpoint."""
    state: StoredFolder
    consumed_group_ids: tuple[str, ...] = ()
    """Ledger: every group ever trained on in this run."""
    cursor: dict[str, int] = Field(default_factory=dict)
    """Optimizer steps, attempts and tokens so far."""
    weights_digest: str
    config_digest: str
    """Of preset, hyper-parameters, adapter and base model; another configuration cannot go on from here."""
    metrics: dict[str, float] = Field(default_factory=dict)
    seconds: dict[str, float] = Field(default_factory=dict)
    """Of the step, so that its report can be sent again."""


class CheckpointStore:
    """Checkpoints of one job. One writer at a time; names carry the incarnation, so a zombie cannot touch ours."""

    def __init__(self, root: Path, incarnation: int) -> None:
        self._root, self._incarnation = root, incarnation
        self._policies, self._states, self._manifests = root / "adapters", root / "states", root / "manifests"

    def open(self) -> Manifest | None:
        """Makes the folders, removes what no manifest names, and returns the newest manifest.

        Raises Internal when a manifest is unreadable or its folders do not have the digests it states.
        """
        with disk_errors(self._root):
            for folder in (self._policies, self._states, self._manifests):
                folder.mkdir(parents=True, exist_ok=True)
        manifests = self._read_all()
        self._remove_strays(manifests)
        if not manifests:
            return None
        newest = manifests[-1]
        self._verify(newest)
        return newest

    def folder(self, stored: StoredFolder) -> Path:
        """Absolute path of a stored folder."""
        return (self._root / stored.path).absolute()

    @contextmanager
    def staging(self, step: int, *, owner: bool) -> Iterator[Path]:
        """A folder for a checkpoint in the making. Its owner, rank 0, makes it and removes it, whatever happens."""
        path = self._root / f".tmp-s{step}-i{self._incarnation}"
        try:
            with disk_errors(self._root):
                if owner:
                    shutil.rmtree(path, ignore_errors=True)
                    path.mkdir(parents=True)
                yield path
        finally:
            if owner:
                shutil.rmtree(path, ignore_errors=True)

    def adopt_policy(self, staged: Path, version: int) -> StoredFolder:
        """Moves a complete folder to its place, durably."""
        return self._adopt(staged, self._policies / f"v{version}-i{self._incarnation}")

    def adopt_state(self, staged: Path, step: int) -> StoredFolder:
        """Moves a complete folder to its place, durably."""
        return self._adopt(staged, self._states / f"s{step}-i{self._incarnation}")

    def commit(self, manifest: Manifest) -> None:
        """Makes the manifest durable: from here on the step counts."""
        target = self._manifests / f"s{manifest.step}-i{manifest.incarnation}.json"
        with disk_errors(self._root):
            write_file_atomically(target, manifest.model_dump_json(indent=1).encode())

    def prune(self, keep: int) -> None:
        """Removes optimizer states but those of the `keep` newest manifests. Policies and manifests stay."""
        kept = {manifest.state.path for manifest in self._read_all()[-keep:]}
        for path in self._states.iterdir():
            if str(path.relative_to(self._root)) not in kept:
                shutil.rmtree(path)

    def _adopt(self, staged: Path, target: Path) -> StoredFolder:
        with disk_errors(self._root):
            fsync_tree(staged)
            digest = tree_digest(staged)
            if target.exists():
                # Left by this incarnation's own interrupted step: no manifest names it.
                shutil.rmtree(target)
            staged.rename(target)
            fsync_path(target.parent)
        return StoredFolder(path=str(target.relative_to(self._root)), digest=digest)

    def _read_all(self) -> list[Manifest]:
        manifests = [_read_manifest(path) for path in self._manifests.glob("*.json")]
        return sorted(manifests, key=lambda manifest: (manifest.incarnation, manifest.step))

    def _remove_strays(self, manifests: list[Manifest]) -> None:
        named = {m.state.path for m in manifests} | {m.policy.path for m in manifests if m.policy}
        candidates = [*self._policies.iterdir(), *self._states.iterdir(), *self._root.glob(".tmp-*")]
        candidates += self._manifests.glob("*.tmp")
        for path in candidates:
            if str(path.relative_to(self._root)) not in named:
                log.warning("removing an unfinished checkpoint", path=str(path))
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _verify(self, manifest: Manifest) -> None:
        for stored in filter(None, (manifest.policy, manifest.state)):
            path = self.folder(stored)
            if not path.is_dir() or tree_digest(path) != stored.digest:
                raise Internal(
                    f"checkpoint of step {manifest.step}: {path} is missing or changed; restore it, or remove"
                    f" {self._manifests}/s{manifest.step}-i{manifest.incarnation}.json to go back to the one before"
                )


def require_same_run(manifest: Manifest, run_id: str, config_digest: str) -> None:
    """Raises Conflict when the manifest belongs to another run or configuration."""
    if manifest.run_id != run_id:
        raise Conflict(f"out_dir holds checkpoints of run {manifest.run_id}, not {run_id}; give another out_dir")
    if manifest.config_digest != config_digest:
        raise Conflict(
            "out_dir holds checkpoints of another configuration (preset, overrides, lora or base model changed);"
            " submit a new run, or remove the folder"
        )


@contextmanager
def disk_errors(where: Path) -> Iterator[None]:
    """Turns a full disk into QuotaExceeded("disk"), also when a library wrapped it."""
    try:
        yield
    except LongshoreError:
        raise
    except Exception as error:
        if not is_disk_full(error):
            raise
        raise QuotaExceeded(f"no space left under {where}: free some and resume the run", which="disk") from error


def is_disk_full(error: BaseException) -> bool:
    """Whether the error, or one it came from, says that the disk or its quota is full."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if any(text in str(seen) for text in ("No space left", "os error 28", "unexpected pos")):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def publish_folder(write: Callable[[Path], None], target: Path) -> None:
    """Writes a folder beside its place and renames it, durably: it is there whole or not at all."""
    staged = target.with_name(f".{target.name}.tmp-{os.getpid()}")
    shutil.rmtree(staged, ignore_errors=True)
    try:
        with disk_errors(target.parent):
            staged.mkdir(parents=True)
            write(staged)
            fsync_tree(staged)
            staged.rename(target)
            fsync_path(target.parent)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def write_file_atomically(target: Path, data: bytes) -> None:
    """Temporary file, fsync, rename, fsync of the folder."""
    temporary = target.with_name(f"{target.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
        fsync_path(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def fsync_tree(root: Path) -> None:
    """fsync of every file and folder under root."""
    for path in (*root.rglob("*"), root):
        if not path.is_symlink():
            fsync_path(path)


def fsync_path(path: Path) -> None:
    """fsync of one file or folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_manifest(path: Path) -> Manifest:
    try:
        return Manifest.model_validate(json.loads(path.read_text()))
    except (ValueError, ValidationError) as error:
        raise Internal(f"{path} is no readable manifest ({error}); remove it to resume from the one before") from error
