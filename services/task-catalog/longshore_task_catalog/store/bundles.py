"""`BundleStore` on the object store."""

from __future__ import annotations

from longshore_common.errors import Internal, NotFound
from longshore_common.objects import ObjectStore


def _key(digest: str) -> str:
    return f"bundles/{digest.removeprefix('sha256:')}.tar.zst"


class ObjectBundleStore:
    """Implements domain.ports.BundleStore; one object per task digest."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    async def put(self, digest: str, bundle: bytes) -> None:
        await self._objects.put(_key(digest), bundle)

    async def get(self, digest: str) -> bytes:
        try:
            return await self._objects.get(_key(digest))
        except NotFound as error:
            raise Internal(
                f"the bundle of task {digest} is gone from {self._objects.url}; import the task again"
            ) from error

    async def exists(self, digest: str) -> bool:
        return await self._objects.exists(_key(digest))
