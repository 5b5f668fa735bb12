"""Tasks from the catalog, made ready for grading once per digest and kept in a bounded cache."""

import asyncio
import tempfile
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import grpc.aio

from longshore.catalog.v1 import catalog_pb2, catalog_pb2_grpc
from longshore_common.bundle import pack_tar, unpack
from longshore_common.digests import tree_digest
from longshore_common.errors import InvalidSpec
from longshore_common.patience import Patience
from longshore_reward_verifier.domain.ports import GradedTask
from longshore_reward_verifier.domain.script import normalise_line_ends, script_argv
from longshore_reward_verifier.domain.task_spec import BadTaskConfig, parse_task_toml

_BUNDLE_TIMEOUT_S = 60.0


class CatalogTasks:
    """Implements domain.ports.Tasks. Keeps at most cache_bytes of archives; the least recently used go first."""

    def __init__(self, channel: grpc.aio.Channel, cache_bytes: int, patiently: Patience) -> None:
        self._stub = catalog_pb2_grpc.CatalogServiceStub(channel)
        self._cache_bytes = cache_bytes
        self._patiently = patiently
        self._tasks: OrderedDict[str, GradedTask] = OrderedDict()
        self._loading: dict[str, asyncio.Task[GradedTask]] = {}

    async def get(self, digest: str) -> GradedTask:
        """The task; concurrent callers share one download. Raises NotFound, InvalidSpec, Unavailable."""
        if digest in self._tasks:
            self._tasks.move_to_end(digest)
            return self._tasks[digest]
        loading = self._loading.get(digest)
        if loading is None:
            loading = asyncio.create_task(self._load(digest))
            self._loading[digest] = loading
            loading.add_done_callback(lambda _: self._loading.pop(digest, None))
        return await asyncio.shield(loading)

    async def _load(self, digest: str) -> GradedTask:
        bundle, known = await self._patiently("read task", lambda: self._fetch(digest))
        task = await asyncio.to_thread(read_bundle, digest, bundle.bundle_tar_zst)
        # The catalog reads the Dockerfile's WORKDIR too; task.toml's own word comes first.
        spec = replace(task.spec, workdir=task.spec.workdir or known.task.workdir)
        task = replace(task, spec=spec, tests_digest=known.task.tests_digest or task.tests_digest)
        self._keep(task)
        return task

    async def _fetch(self, digest: str) -> tuple[catalog_pb2.GetBundleResponse, catalog_pb2.GetTaskResponse]:
        return await asyncio.gather(
            self._stub.GetBundle(catalog_pb2.GetBundleRequest(digest=digest), timeout=_BUNDLE_TIMEOUT_S),
            self._stub.GetTask(catalog_pb2.GetTaskRequest(task=digest)),
        )

    def _keep(self, task: GradedTask) -> None:
        self._tasks[task.digest] = task
        total = sum(each.size for each in self._tasks.values())
        while total > self._cache_bytes and len(self._tasks) > 1:
            total -= self._tasks.popitem(last=False)[1].size


def read_bundle(digest: str, bundle: bytes) -> GradedTask:
    """A task from its tar.zst: archives of tests/ and solution/, how their scripts are run, what task.toml asks.

    Blocking: call it in a thread. Raises InvalidSpec when there is no tests/test.sh or task.toml cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="longshore-verifier-") as folder:
        root = Path(folder)
        unpack(bundle, root)
        tests, solution = root / "tests", root / "solution"
        try:
            spec = parse_task_toml(_read(root / "task.toml"))
        except BadTaskConfig as error:
            raise InvalidSpec(str(error), field="task.toml") from error
        tests_digest = tree_digest(tests) if tests.is_dir() else ""
        test_argv = _prepare_script(tests / "test.sh", "/tests/test.sh")
        has_solution = (solution / "solve.sh").is_file()
        return GradedTask(
            digest=digest,
            spec=spec,
            tests_tar=pack_tar(tests),
            tests_digest=tests_digest,
            test_argv=test_argv,
            solution_argv=_prepare_script(solution / "solve.sh", "/solution/solve.sh") if has_solution else (),
            solution_tar=pack_tar(solution) if has_solution else None,
        )


def _read(path: Path) -> bytes:
    if path.is_symlink() or not path.is_file():
        raise InvalidSpec(f"the bundle has no file {path.name}", field=path.name)
    return path.read_bytes()


def _prepare_script(path: Path, target: str) -> tuple[str, ...]:
    """Makes a script runnable in place and gives the argv that runs it at target."""
    content = normalise_line_ends(_read(path))
    path.write_bytes(content)
    path.chmod(0o755)
    return tuple(script_argv(target, content))
