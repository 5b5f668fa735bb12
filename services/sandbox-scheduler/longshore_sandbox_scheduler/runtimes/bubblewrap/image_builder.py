"""Images from task environments: a base tree and one built layer, cached on disk by environment digest and base."""

from __future__ import annotations

import asyncio
import io
import json
import os
import secrets
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longshore_common.bundle import unpack
from longshore_common.digests import digest
from longshore_common.errors import InvalidSpec
from longshore_sandbox_scheduler.domain.bases import BaseRecipe, find_base
from longshore_sandbox_scheduler.domain.dockerfile import Copy, Dockerfile, MakeFolder, Run, parse
from longshore_sandbox_scheduler.domain.model import EndReason, Image, Limits, TaskEnvironment
from longshore_sandbox_scheduler.domain.output import OutputBuffer
from longshore_sandbox_scheduler.domain.runtime import Command, PreparedImage, SandboxEnd
from longshore_sandbox_scheduler.runtimes.bubblewrap.base_tree import BaseTree, BaseTrees
from longshore_sandbox_scheduler.runtimes.bubblewrap.sandbox import BubblewrapSandbox
from longshore_sandbox_scheduler.runtimes.bubblewrap.trees import layer_digest, own_tree, remove_tree, replace_folder
from longshore_sandbox_scheduler.runtimes.copy_plan import (
    DOCKERFILE,
    Entry,
    LayerWriter,
    file_mode,
    line_named,
    plan_copy,
)

_FORMAT = 1
_OUTPUT_KEPT = 8192

StartBuildSandbox = Callable[[str, Path, Limits], Awaitable[BubblewrapSandbox]]
"""(base key, folder with `upper` and `work`, limits) -> a sandbox that writes into that folder's upper."""


@dataclass(frozen=True)
class BuilderOptions:
    """Where images are kept, whose they are, and which bases exist."""

    cache_dir: Path
    owner_uid: int | None
    uids: int
    recipes: dict[str, BaseRecipe]
    build_limits: Limits


class ImageBuilder:
    """Builds each environment at most once; several processes may share the cache."""

    def __init__(self, options: BuilderOptions, start_sandbox: StartBuildSandbox) -> None:
        self._options = options
        self._layers = options.cache_dir / "layers"
        self._bases = BaseTrees(options.cache_dir / "bases", options.recipes, options.owner_uid)
        self._start_sandbox = start_sandbox
        self._known: dict[str, Image] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._base_lock = asyncio.Lock()

    async def prepare(self, task: TaskEnvironment, bundle: Callable[[], Awaitable[bytes]]) -> PreparedImage:
        """The image of a task's environment. Raises InvalidSpec with the line, Unavailable."""
        if task.digest in self._known:
            return PreparedImage(self._known[task.digest], built=False, seconds=0.0)
        began = time.monotonic()
        async with self._locks.setdefault(task.environment_digest or task.digest, asyncio.Lock()):
            image, built = await self._find(task), False
            if image is None:
                image, built = await self._build(task, bundle), True
        self._known[task.digest] = image
        return PreparedImage(image, built, time.monotonic() - began)

    def _key(self, task: TaskEnvironment) -> str:
        # Without an environment digest the task's own is the only name of its content.
        identity = [_FORMAT, task.environment_digest or task.digest, task.workdir, self._options.owner_uid]
        return digest(identity).removeprefix("sha256:")[:24]

    async def _find(self, task: TaskEnvironment) -> Image | None:
        for path in await asyncio.to_thread(lambda: sorted(self._layers.glob(f"{self._key(task)}-*/meta.json"))):
            meta = json.loads(await asyncio.to_thread(path.read_text))
            if meta["base"] not in self._options.recipes:
                continue
            base = await self._base(meta["base"])
            # Otherwise the machine's programs changed since, and the layer was built over another base.
            if meta["base_key"] == base.key:
                return self._image(base, meta)
        return None

    async def _base(self, name: str) -> BaseTree:
        async with self._base_lock:
            return await asyncio.to_thread(self._bases.get, name)

    def _image(self, base: BaseTree, meta: dict[str, Any]) -> Image:
        return Image(
            digest=digest({"base": base.digest, "layer": meta["layer_digest"]}),
            layers=(f"bases/{base.key}/tree", f"layers/{meta['key']}/upper"),
            workdir=meta["workdir"],
            user=meta["user"],
            env=meta["env"],
        )

    async def _build(self, task: TaskEnvironment, bundle: Callable[[], Awaitable[bytes]]) -> Image:
        data = await bundle()
        folder = self._layers / f".tmp-{os.getpid()}-{secrets.token_hex(4)}"
        with tempfile.TemporaryDirectory(prefix="longshore-context-") as temporary:
            context = Path(temporary)
            try:
                await asyncio.to_thread(unpack, data, context)
                file = await asyncio.to_thread(_read_dockerfile, context, task)
                base = await self._base(self._base_name(file))
                await self._build_layer(file, base, context / "environment", folder, task)
                return await self._keep(file, base, folder, task)
            finally:
                await asyncio.to_thread(remove_tree, folder)

    def _base_name(self, file: Dockerfile) -> str:
        name = find_base(self._options.recipes, file.base)
        if name is None:
            known = ", ".join(sorted(self._options.recipes))
            raise InvalidSpec(
                f"{DOCKERFILE}:{file.base_line}: FROM {file.base}: no such local base; this machine has {known} "
                "(add it to the scheduler's `bases`, or use the pod runtime)",
                field=f"{DOCKERFILE}:{file.base_line}",
            )
        return name

    async def _build_layer(
        self, file: Dockerfile, base: BaseTree, context: Path, folder: Path, task: TaskEnvironment
    ) -> None:
        first_run = next((i for i, step in enumerate(file.steps) if isinstance(step, Run)), len(file.steps))
        await asyncio.to_thread(self._write_files, file.steps[:first_run], base, context, folder)
        if first_run == len(file.steps):
            return
        sandbox = await self._start_sandbox(base.key, folder, self._options.build_limits)
        try:
            for step in file.steps[first_run:]:
                await self._step_inside(sandbox, step, context, task.build_timeout_s)
            await sandbox.kill_all()
        finally:
            await sandbox.stop(SandboxEnd(EndReason.DELETED, "the build ended"))

    def _write_files(
        self, steps: tuple[Copy | Run | MakeFolder, ...], base: BaseTree, context: Path, folder: Path
    ) -> None:
        upper = folder / "upper"
        for path in (folder, upper, folder / "work"):
            path.mkdir(parents=True)
            path.chmod(0o755)
        writer = LayerWriter(base.path, upper)
        for step in steps:
            with line_named(step.line):
                if isinstance(step, MakeFolder):
                    writer.make_folder(step.path)
                elif isinstance(step, Copy):
                    entries = plan_copy(step, context, writer.is_folder(step.destination))
                    writer.write(entries, step.mode)
        own_tree(upper, self._options.owner_uid)
        own_tree(folder / "work", self._options.owner_uid)

    async def _step_inside(
        self, sandbox: BubblewrapSandbox, step: Copy | Run | MakeFolder, context: Path, timeout_s: float
    ) -> None:
        with line_named(step.line):
            if isinstance(step, MakeFolder):
                await sandbox.make_dirs(step.path)
            elif isinstance(step, Copy):
                await _copy_inside(sandbox, step, context)
            else:
                await _run(sandbox, step, timeout_s)

    async def _keep(self, file: Dockerfile, base: BaseTree, folder: Path, task: TaskEnvironment) -> Image:
        key = f"{self._key(task)}-{base.key[:12]}"

        def finish() -> dict[str, Any]:
            remove_tree(folder / "work")
            meta = {
                "key": key,
                "base": base.name,
                "base_key": base.key,
                "layer_digest": layer_digest(folder / "upper"),
                "workdir": file.workdir,
                "user": file.user,
                "env": dict(file.env),
            }
            (folder / "meta.json").write_text(json.dumps(meta))
            final = self._layers / key
            if not replace_folder(folder, final):
                # Another process was first; what it built is what gets mounted.
                meta = json.loads((final / "meta.json").read_text())
            return meta

        return self._image(base, await asyncio.to_thread(finish))


def _read_dockerfile(context: Path, task: TaskEnvironment) -> Dockerfile:
    folder = context / "environment"
    for name in ("docker-compose.yaml", "docker-compose.yml"):
        if (folder / name).exists():
            raise InvalidSpec(
                f"environment/{name}: several containers need the pod runtime "
                "(LONGSHORE_SANDBOX_SCHEDULER_RUNTIME=pod); this is the bubblewrap runtime",
                field=f"environment/{name}",
            )
    if (folder / ".dockerignore").exists():
        raise InvalidSpec(
            "environment/.dockerignore is not supported here; remove it", field="environment/.dockerignore"
        )
    path = folder / "Dockerfile"
    if path.exists():
        try:
            file = parse(path.read_bytes().decode())
        except UnicodeDecodeError as error:
            raise InvalidSpec(f"{DOCKERFILE} is not UTF-8: {error}", field=DOCKERFILE) from error
    else:
        file = _from_image_name(context)
    workdir = file.workdir if any(isinstance(step, MakeFolder) for step in file.steps) else task.workdir or "/"
    return Dockerfile(file.base, file.base_line, file.steps, file.env, workdir, file.user)


def _from_image_name(context: Path) -> Dockerfile:
    try:
        environment = tomllib.loads((context / "task.toml").read_text()).get("environment", {})
    except (OSError, ValueError) as error:
        raise InvalidSpec(f"task.toml cannot be read: {error}", field="task.toml") from error
    name = environment.get("docker_image")
    if not isinstance(name, str) or not name:
        raise InvalidSpec("the task has neither environment/Dockerfile nor environment.docker_image", field=DOCKERFILE)
    return parse(f"FROM {name}\n", "task.toml environment.docker_image")


async def _copy_inside(sandbox: BubblewrapSandbox, step: Copy, context: Path) -> None:
    # After a RUN only the sandbox itself knows what lies where.
    folder = await sandbox.resolve(step.destination)
    is_folder = (await sandbox.stat(folder)).kind == "dir"
    resolved = Copy(step.line, step.sources, folder, step.into_folder, step.mode)
    entries = await asyncio.to_thread(plan_copy, resolved, context, is_folder)
    data = await asyncio.to_thread(_pack, entries, step.mode)
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        await sandbox.upload_tar("/", file, replace=False)


def _pack(entries: list[Entry], mode: int | None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry in entries:
            info = tarfile.TarInfo(entry.destination.lstrip("/"))
            if entry.source.is_symlink():
                info.type, info.linkname = tarfile.SYMTYPE, os.readlink(entry.source)
                tar.addfile(info)
            elif entry.source.is_dir():
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(info)
            else:
                content = entry.source.read_bytes()
                info.size, info.mode = len(content), file_mode(entry.source, mode)
                tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


async def _run(sandbox: BubblewrapSandbox, step: Run, timeout_s: float) -> None:
    output = OutputBuffer(_OUTPUT_KEPT)

    def take(_: object, data: bytes) -> bool:
        output.append(data)
        return output.full

    command = await sandbox.start_command(Command(step.argv, step.env, step.workdir, step.user), take)
    try:
        async with asyncio.timeout(timeout_s):
            end = await command.wait()
    except TimeoutError:
        await command.kill_tree()
        raise InvalidSpec(f"RUN did not end within {timeout_s:.0f} s (build_timeout_sec)") from None
    if end.exit_code == 0:
        return
    chunk = output.tail_from(0) or output.head_from(0)
    text = chunk.data.decode(errors="replace").strip() if chunk else ""
    how = (
        "was killed for memory"
        if end.oom_killed
        else f"exited with {end.exit_code if end.exit_code >= 0 else -end.signal}"
    )
    raise InvalidSpec(f"RUN {how}: {text[-1500:]}")
