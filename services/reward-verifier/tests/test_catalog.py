"""Bundles made ready for grading, and the bounded cache of them."""

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from longshore.catalog.v1 import catalog_pb2, catalog_pb2_grpc
from longshore_common.app import App, GrpcEndpoint, running
from longshore_common.bundle import pack_folder
from longshore_common.clock import SystemClock
from longshore_common.digests import tree_digest
from longshore_common.errors import InvalidSpec, NotFound, Unavailable
from longshore_common.grpc_client import open_channel
from longshore_common.patience import Patience
from longshore_reward_verifier.clients.catalog import CatalogTasks, read_bundle

PATIENTLY = Patience(SystemClock(), 30, Unavailable)


def bundle(root: Path, **changes: bytes | None) -> bytes:
    files: dict[str, bytes | None] = {
        "task.toml": b"[verifier]\ntimeout_sec = 3\n",
        "tests/test.sh": b"#!/bin/bash\r\necho 1\r\n",
        "tests/data/expected.txt": b"kept\r\n",
        "solution/solve.sh": b"#!/bin/sh\necho\n",
        **{
            name.replace("__", "/").replace("_sh", ".sh").replace("_toml", ".toml"): data
            for name, data in changes.items()
        },
    }
    for name, data in files.items():
        if data is not None:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
    return pack_folder(root)


def members(archive: bytes) -> dict[str, tuple[int, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {each.name: (each.mode, tar.extractfile(each).read()) for each in tar}  # type: ignore[union-attr]


def test_scripts_are_made_runnable_and_other_files_stay(tmp_path: Path) -> None:
    """SWE-bench#652/#661, pier#18: CRLF in a script, no execute bit."""
    task = read_bundle("sha256:t", bundle(tmp_path))
    assert members(task.tests_tar) == {
        "test.sh": (0o755, b"#!/bin/bash\necho 1\n"),
        "data/expected.txt": (0o644, b"kept\r\n"),
    }
    assert task.test_argv == ("/bin/bash", "/tests/test.sh")
    assert task.solution_argv == ("/bin/sh", "/solution/solve.sh")
    assert task.spec.verifier_timeout_s == 3.0
    assert task.tests_digest == tree_digest(tmp_path / "tests")


def test_a_task_without_solution_has_no_oracle(tmp_path: Path) -> None:
    task = read_bundle("sha256:t", bundle(tmp_path, solution__solve_sh=None))
    assert task.solution_tar is None


@pytest.mark.parametrize("changes", [{"tests__test_sh": None}, {"task_toml": None}, {"task_toml": b"[verifier"}])
def test_a_bundle_that_cannot_be_graded_is_refused(tmp_path: Path, changes: dict[str, bytes | None]) -> None:
    with pytest.raises(InvalidSpec):
        read_bundle("sha256:t", bundle(tmp_path, **changes))


def test_test_sh_must_not_be_a_link(tmp_path: Path) -> None:
    bundle(tmp_path, tests__test_sh=None)
    (tmp_path / "tests" / "test.sh").symlink_to("data/expected.txt")
    with pytest.raises(InvalidSpec):
        read_bundle("sha256:t", pack_folder(tmp_path))


class FakeCatalog(catalog_pb2_grpc.CatalogServiceServicer):
    def __init__(self, content: bytes) -> None:
        self.content = content
        self.downloads: list[str] = []
        self.away = False

    async def GetTask(self, request: Any, context: Any) -> catalog_pb2.GetTaskResponse:
        return catalog_pb2.GetTaskResponse(task=catalog_pb2.Task(workdir="/from-dockerfile", tests_digest="sha256:x"))

    async def GetBundle(self, request: Any, context: Any) -> catalog_pb2.GetBundleResponse:
        self.downloads.append(request.digest)
        await asyncio.sleep(0.02)
        if self.away:
            raise Unavailable("restarting")
        if request.digest == "missing":
            raise NotFound("no task missing")
        return catalog_pb2.GetBundleResponse(bundle_tar_zst=self.content)


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[tuple[FakeCatalog, Any]]:
    fake = FakeCatalog(bundle(tmp_path))

    def register(server: Any) -> None:
        catalog_pb2_grpc.add_CatalogServiceServicer_to_server(fake, server)

    async with running(App("fake", [GrpcEndpoint("127.0.0.1:0", (), register, None)])) as handle:
        channel = open_channel(handle.grpc_addresses[0])
        yield fake, channel
        await channel.close()


async def test_concurrent_callers_share_one_download(catalog: tuple[FakeCatalog, Any]) -> None:
    fake, channel = catalog
    tasks = CatalogTasks(channel, 1 << 20, PATIENTLY)
    got = await asyncio.gather(*(tasks.get("a") for _ in range(5)))
    assert fake.downloads == ["a"]
    assert {task.spec.workdir for task in got} == {"/from-dockerfile"}
    assert got[0].tests_digest == "sha256:x"


async def test_the_cache_is_bounded_and_forgets_the_least_used(catalog: tuple[FakeCatalog, Any]) -> None:
    fake, channel = catalog
    size = (await CatalogTasks(channel, 1 << 20, PATIENTLY).get("a")).size
    fake.downloads.clear()
    tasks = CatalogTasks(channel, 2 * size, PATIENTLY)
    for digest in ("a", "b", "a", "c", "a", "b"):
        await tasks.get(digest)
    assert fake.downloads == ["a", "b", "c", "b"]


async def test_a_failed_download_is_not_remembered(catalog: tuple[FakeCatalog, Any]) -> None:
    fake, channel = catalog
    tasks = CatalogTasks(channel, 1 << 20, PATIENTLY)
    for _ in range(2):
        with pytest.raises(NotFound):
            await tasks.get("missing")
    assert fake.downloads == ["missing", "missing"]


async def test_a_catalog_that_restarts_is_waited_for(catalog: tuple[FakeCatalog, Any]) -> None:
    fake, channel = catalog
    fake.away = True
    getting = asyncio.create_task(CatalogTasks(channel, 1 << 20, PATIENTLY).get("a"))
    await asyncio.sleep(2.5)
    assert not getting.done()
    fake.away = False
    assert (await getting).digest == "a"
