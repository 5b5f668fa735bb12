"""One scheduler per data folder: two of one name would take each other's sandboxes for leftovers."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from longshore_common.errors import Conflict


class FolderLock:
    """A lock file, held for as long as this process lives."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1

    def take(self, data_dir: Path) -> None:
        """data_dir: named in the error. Raises Conflict when another scheduler holds it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(file)
            raise Conflict(f"another scheduler uses {data_dir}; give this one its own data_dir") from error
        self._file = file

    def release(self) -> None:
        """Not held: no effect."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
