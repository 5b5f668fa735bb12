"""Objects by key: a folder on a laptop, S3, GCS or Azure in a cluster, by obstore."""

from __future__ import annotations

import errno
from pathlib import Path
from urllib.parse import unquote, urlparse

import obstore
from obstore.exceptions import BaseError
from obstore.store import from_url

from longshore_common.errors import LongshoreError, NotFound, QuotaExceeded, Unavailable


def _map(error: Exception, key: str) -> LongshoreError:
    if isinstance(error, FileNotFoundError):
        return NotFound(f"no object {key}")
    if (isinstance(error, OSError) and error.errno == errno.ENOSPC) or "No space left on device" in str(error):
        return QuotaExceeded(f"the disk is full: object {key} was not written; free space and try again", which="disk")
    return Unavailable(f"object {key}: {error}")


class ObjectStore:
    """Keys are relative POSIX paths. Raises NotFound, QuotaExceeded(which="disk") or Unavailable."""

    def __init__(self, url: str) -> None:
        """url: file:///absolute/folder (created when missing), s3://bucket/prefix, gs://..., az://..."""
        self.url = url
        parsed = urlparse(url)
        if parsed.scheme == "file":
            Path(unquote(parsed.path)).mkdir(parents=True, exist_ok=True)
        self._store = from_url(url)

    async def put(self, key: str, data: bytes) -> None:
        """Stores data under key, whole or not at all."""
        try:
            await obstore.put_async(self._store, key, data)
        except (BaseError, OSError) as error:
            raise _map(error, key) from error

    async def get(self, key: str) -> bytes:
        """The data under key."""
        try:
            result = await obstore.get_async(self._store, key)
            return bytes(await result.bytes_async())
        except (BaseError, OSError) as error:
            raise _map(error, key) from error

    async def exists(self, key: str) -> bool:
        """Whether there is an object under key."""
        try:
            await obstore.head_async(self._store, key)
        except FileNotFoundError:
            return False
        except (BaseError, OSError) as error:
            raise _map(error, key) from error
        return True

    async def delete(self, key: str) -> None:
        """Removes the object; absent is no error."""
        try:
            await obstore.delete_async(self._store, key)
        except FileNotFoundError:
            return
        except (BaseError, OSError) as error:
            raise _map(error, key) from error

    async def list(self, prefix: str) -> list[str]:
        """Sorted keys that start with the folder `prefix`."""
        try:
            batches = obstore.list(self._store, prefix=prefix)
            return sorted(meta["path"] for batch in batches for meta in batch)
        except (BaseError, OSError) as error:
            raise _map(error, prefix) from error
