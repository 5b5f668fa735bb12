"""Which image a task's pods run. Nothing is built here: a cluster pulls."""

from __future__ import annotations

import asyncio
import re
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from longshore_common.bundle import unpack
from longshore_common.digests import digest
from longshore_common.errors import InvalidSpec
from longshore_sandbox_scheduler.domain.dockerfile import Dockerfile, MakeFolder, Run, parse
from longshore_sandbox_scheduler.domain.model import Image, TaskEnvironment
from longshore_sandbox_scheduler.domain.runtime import PreparedImage
from longshore_sandbox_scheduler.runtimes.copy_plan import DOCKERFILE
from longshore_sandbox_scheduler.runtimes.pod import compose
from longshore_sandbox_scheduler.runtimes.pod.layers import MIB, Layers, make_layer, needs_layer

_TAG_LENGTH = 32
_OWN_IMAGE = "MAIN_IMAGE_NAME"
_REFERENCE = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]+)?/|\[[0-9a-fA-F:]+\](?::[0-9]+)?/)?"
    r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
"""As container runtimes read image names."""


@dataclass(frozen=True)
class ImageOptions:
    """Where images are found."""

    repository: str = ""
    """Repository of images built from tasks' environments, tagged by the first 32 digits of the environment's digest;
    empty: there are none."""
    bases: Mapping[str, str] = field(default_factory=dict)
    """FROM name of a Dockerfile -> image; other names are pulled as they are."""
    max_layer_mb: int = 64
    """Most that the COPY steps of a Dockerfile may bring, MiB: it is sent to each pod at its claim."""
    layer_cache_mb: int = 256
    """Such files that are held in memory, MiB; beyond it the least recently used are made again."""
    concurrent_layers: int = 64
    """Pods that are sent their files at a time; more claims wait for their turn."""


class PodImages:
    """Images by task. A digest's content never changes, so they are remembered."""

    def __init__(self, options: ImageOptions) -> None:
        self._options = options
        self._known: dict[str, Image] = {}
        self._layers = Layers(options.layer_cache_mb * MIB)

    async def prepare(self, task: TaskEnvironment, bundle: Callable[[], Awaitable[bytes]]) -> PreparedImage:
        """The image of a task's environment. Raises InvalidSpec saying what to set."""
        if task.digest not in self._known:
            began = time.monotonic()
            self._known[task.digest], built = await self._find(task, bundle)
            return PreparedImage(self._known[task.digest], built, seconds=time.monotonic() - began)
        return PreparedImage(self._known[task.digest], built=False, seconds=0.0)

    async def layer(self, image: Image) -> bytes:
        """The tar of an image's layer; empty when it has none."""
        return await self._layers.tar(image.layer) if image.layer else b""

    async def _find(self, task: TaskEnvironment, bundle: Callable[[], Awaitable[bytes]]) -> tuple[Image, bool]:
        files = await _read_files(await bundle())
        composed = compose.find(files, {_OWN_IMAGE: _OWN_IMAGE})
        if composed is None:
            return await self._main(task, files, task.docker_image, bundle)
        # Harbor names the image that is built of the task's own environment so.
        own = composed.main_image in ("", _OWN_IMAGE)
        image, built = await self._main(task, files, task.docker_image if own else composed.main_image, bundle)
        image = replace(
            image,
            workdir=composed.workdir or image.workdir,
            user=composed.user or image.user,
            env={**image.env, **composed.env},
            sidecars=composed.sidecars,
        )
        return image, built

    async def _main(
        self, task: TaskEnvironment, files: Mapping[str, bytes], named: str, bundle: Callable[[], Awaitable[bytes]]
    ) -> tuple[Image, bool]:
        if named:
            return image_of(named, task.workdir), False
        tag = task.environment_digest.removeprefix("sha256:")[:_TAG_LENGTH]
        pushed = f"{self._options.repository}:{tag}" if self._options.repository and tag else ""
        try:
            return await self._of_dockerfile(task, _parsed(files, tag), pushed, bundle)
        except InvalidSpec:
            if not pushed:
                raise
            return image_of(pushed, task.workdir), False

    async def _of_dockerfile(
        self, task: TaskEnvironment, file: Dockerfile, pushed: str, bundle: Callable[[], Awaitable[bytes]]
    ) -> tuple[Image, bool]:
        own_workdir = any(isinstance(step, MakeFolder) for step in file.steps)
        workdir = file.workdir if own_workdir else task.workdir
        image = image_of(self._base(file, pushed), workdir, file.user, file.env)
        if not needs_layer(file):
            return image, False

        async def make() -> bytes:
            return await _made(await bundle(), file, self._options.max_layer_mb * MIB)

        layer, built = await self._layers.find(task.environment_digest or task.digest, make)
        return replace(image, digest=layered(image.digest, layer), layer=layer, base_digest=image.digest), built

    def _base(self, file: Dockerfile, pushed: str) -> str:
        """The image of FROM. Raises InvalidSpec when there is none, or a pushed image is meant instead."""
        base = self._options.bases.get(file.base) or self._options.bases.get(file.base.removesuffix(":latest"))
        if base:
            return base
        where = f"{DOCKERFILE}:{file.base_line}"
        if pushed:
            raise InvalidSpec(f"{where}: FROM {file.base} is not among pods.images.bases", field=where)
        if file.base == "scratch" or not _REFERENCE.fullmatch(file.base):
            raise InvalidSpec(
                f"{where}: FROM {file.base} names no image that a cluster can pull; name one, or add it to the "
                "scheduler's pods.images.bases",
                field=where,
            )
        return file.base


def layered(base: str, layer: str) -> str:
    """Digest of an image of digest `base` with a layer over it."""
    return digest({"base": base, "layer": layer})


async def _read_files(bundle: bytes) -> dict[str, bytes]:
    def read() -> dict[str, bytes]:
        with tempfile.TemporaryDirectory(prefix="longshore-context-") as folder:
            unpack(bundle, Path(folder))
            paths = {name: Path(folder) / name for name in (DOCKERFILE, *compose.FILES)}
            return {name: path.read_bytes() for name, path in paths.items() if path.is_file()}

    return await asyncio.to_thread(read)


async def _made(bundle: bytes, file: Dockerfile, max_bytes: int) -> bytes:
    def make() -> bytes:
        with tempfile.TemporaryDirectory(prefix="longshore-context-") as folder:
            unpack(bundle, Path(folder))
            return make_layer(file, Path(folder, "environment"), max_bytes)

    return await asyncio.to_thread(make)


def image_of(reference: str, workdir: str = "", user: str = "", env: Mapping[str, str] | None = None) -> Image:
    """An image by its name. Its digest is the name's own where that has one, else that of the name: what a pod really
    runs is read from the pod.

    Raises:
        InvalidSpec: no container runtime would take this name.
    """
    if not _REFERENCE.fullmatch(reference):
        raise InvalidSpec(
            f"{reference!r} is no image name; expected [registry/]name[:tag][@sha256:64 hex digits], lower case",
            field="environment.docker_image",
        )
    _, at, named = reference.partition("@")
    return Image(
        digest=named if at else digest({"image": reference}),
        workdir=workdir,
        user=user,
        env=dict(env or {}),
        reference=reference,
    )


def _parsed(files: Mapping[str, bytes], tag: str) -> Dockerfile:
    """The Dockerfile of an environment that needs no build. Raises InvalidSpec saying what to do."""
    if DOCKERFILE not in files:
        raise InvalidSpec(
            f"there is no {DOCKERFILE} and no [environment].docker_image; {_remedy(tag)}", field=DOCKERFILE
        )
    try:
        file = parse(files[DOCKERFILE].decode(errors="replace"))
    except InvalidSpec as error:
        raise InvalidSpec(f"{error.message}; {_remedy(tag)}", field=DOCKERFILE) from error
    for step in file.steps:
        if isinstance(step, Run):
            where = f"{DOCKERFILE}:{step.line}"
            raise InvalidSpec(f"{where}: RUN needs a build, and nothing is built here; {_remedy(tag)}", field=where)
    return file


def _remedy(tag: str) -> str:
    return (
        f"build environment/, push it as REPOSITORY:{tag or '(the first 32 digits of its environment digest)'} and "
        "set the scheduler's pods.images.repository, or set [environment].docker_image in task.toml"
    )
