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
from longshore_sandbox_scheduler.domain.dockerfile import Dockerfile, MakeFolder, parse
from longshore_sandbox_scheduler.domain.model import Image, TaskEnvironment
from longshore_sandbox_scheduler.domain.runtime import PreparedImage
from longshore_sandbox_scheduler.runtimes.pod import compose

_WHERE = "environment/Dockerfile"
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
    """FROM name of a Dockerfile -> image, for environments that only set a working folder, variables and a user."""


class PodImages:
    """Images by task. A digest's content never changes, so they are remembered."""

    def __init__(self, options: ImageOptions) -> None:
        self._options = options
        self._known: dict[str, Image] = {}

    async def prepare(self, task: TaskEnvironment, bundle: Callable[[], Awaitable[bytes]]) -> PreparedImage:
        """The image of a task's environment. Raises InvalidSpec saying what to set."""
        if task.digest not in self._known:
            began = time.monotonic()
            self._known[task.digest] = await self._find(task, bundle)
            return PreparedImage(self._known[task.digest], built=False, seconds=time.monotonic() - began)
        return PreparedImage(self._known[task.digest], built=False, seconds=0.0)

    async def _find(self, task: TaskEnvironment, bundle: Callable[[], Awaitable[bytes]]) -> Image:
        files = await self._files(await bundle())
        composed = compose.find(files, {_OWN_IMAGE: _OWN_IMAGE})
        if composed is None:
            return self._main(task, files, task.docker_image)
        # Harbor names the image that is built of the task's own environment so.
        own = composed.main_image in ("", _OWN_IMAGE)
        image = self._main(task, files, task.docker_image if own else composed.main_image)
        return replace(
            image,
            workdir=composed.workdir or image.workdir,
            user=composed.user or image.user,
            env={**image.env, **composed.env},
            sidecars=composed.sidecars,
        )

    def _main(self, task: TaskEnvironment, files: Mapping[str, bytes], named: str) -> Image:
        if named:
            return image_of(named, task.workdir)
        file = parse(files[_WHERE].decode(errors="replace")) if _WHERE in files else None
        if file is not None and file.base in self._options.bases:
            line = _first_built(file)
            if not line:
                own_workdir = any(isinstance(step, MakeFolder) for step in file.steps)
                workdir = file.workdir if own_workdir else task.workdir
                return image_of(self._options.bases[file.base], workdir, file.user, file.env)
        if self._options.repository and task.environment_digest:
            tag = task.environment_digest.removeprefix("sha256:")[:_TAG_LENGTH]
            return image_of(f"{self._options.repository}:{tag}", task.workdir)
        raise _no_image(file)

    async def _files(self, bundle: bytes) -> dict[str, bytes]:
        def read() -> dict[str, bytes]:
            with tempfile.TemporaryDirectory(prefix="longshore-context-") as folder:
                unpack(bundle, Path(folder))
                paths = {name: Path(folder) / name for name in (_WHERE, *compose.FILES)}
                return {name: path.read_bytes() for name, path in paths.items() if path.is_file()}

        return await asyncio.to_thread(read)


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


def _first_built(file: Dockerfile) -> str:
    """The first step that needs a build; empty: none does."""
    return next((type(step).__name__ for step in file.steps if not isinstance(step, MakeFolder)), "")


def _no_image(file: Dockerfile | None) -> InvalidSpec:
    if file is None:
        why = f"there is no {_WHERE} and no [environment].docker_image"
    elif step := _first_built(file):
        why = f"{_WHERE} has a step that needs a build ({step})"
    else:
        why = f"{_WHERE}:{file.base_line}: FROM {file.base} is not in the scheduler's table of images (pod_bases)"
    return InvalidSpec(
        f"{why}; set [environment].docker_image in task.toml, or push the built image and set the scheduler's "
        "pod_image_repository",
        field=_WHERE,
    )
