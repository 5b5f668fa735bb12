"""Which image, layer and settings a task's pods get."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from dataclasses import replace

import pytest
import zstandard

from longshore_common.errors import InvalidSpec
from longshore_sandbox_scheduler.domain.model import Image, Limits, Template
from longshore_sandbox_scheduler.domain.model import TaskEnvironment as Task
from longshore_sandbox_scheduler.runtimes.pod.images import ImageOptions, PodImages

OPTIONS = ImageOptions(bases={"longshore/base": "registry.example/base:1"})
ENVIRONMENT = "sha256:" + "e" * 64
PUSHED = ImageOptions(repository="registry.example/tasks", bases=OPTIONS.bases)


def task(name: str = "t", **changes: object) -> Task:
    plain = Task(digest=name, environment_digest=f"{ENVIRONMENT}{name}", limits=Limits(), build_timeout_s=1.0)
    return replace(plain, **changes)  # type: ignore[arg-type]


class Bundle:
    """A task's tar.zst; counts how often it is asked for."""

    def __init__(self, files: Mapping[str, str]) -> None:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for name, text in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(text.encode())
                tar.addfile(info, io.BytesIO(text.encode()))
        self._data = zstandard.compress(buffer.getvalue())
        self.calls = 0

    async def __call__(self) -> bytes:
        self.calls += 1
        return self._data


def dockerfile(text: str, **files: str) -> Bundle:
    return Bundle({"environment/Dockerfile": text, **{f"environment/{name}": body for name, body in files.items()}})


async def prepared(images: PodImages, one: Task, bundle: Bundle) -> Image:
    return (await images.prepare(one, bundle)).image


async def test_a_copying_dockerfile_is_its_base_and_a_layer_and_both_are_in_the_digest() -> None:
    images = PodImages(OPTIONS)
    text = "FROM longshore/base\nWORKDIR /app\nENV A=1\nUSER me\nCOPY f /app/\n"
    one = await images.prepare(task("1"), dockerfile(text, f="one"))
    other = await prepared(images, task("2"), dockerfile(text, f="other"))
    assert one.built
    assert (one.image.reference, one.image.workdir, one.image.user, one.image.env) == (
        "registry.example/base:1", "/app", "me", {"A": "1"},
    )  # fmt: skip
    assert one.image.digest not in (other.digest, one.image.base_digest)
    elsewhere = PodImages(ImageOptions(bases={"longshore/base": "registry.example/base:2"}))
    moved = await prepared(elsewhere, task("1"), dockerfile(text, f="one"))
    assert (moved.layer, moved.digest != one.image.digest) == (one.image.layer, True)
    with tarfile.open(fileobj=io.BytesIO(await images.layer(one.image))) as tar:
        assert tar.getnames() == ["app/f"]


async def test_tasks_of_one_base_share_a_warm_pool_whatever_they_copy() -> None:
    images = PodImages(OPTIONS)
    text = "FROM longshore/base\nWORKDIR /app\n"
    found = [
        await prepared(images, task("1"), dockerfile(text + "COPY f /app/\n", f="one")),
        await prepared(images, task("2"), dockerfile(text + "COPY f /app/\n", f="two")),
        await prepared(images, task("3"), dockerfile(text)),
    ]
    assert len({image.digest for image in found}) == 3
    assert len({Template(image, Limits()).key for image in found}) == 1


async def test_one_environment_is_made_once_and_a_known_task_asks_for_nothing() -> None:
    images = PodImages(OPTIONS)
    bundle = dockerfile("FROM longshore/base\nCOPY f /f\n", f="x")
    same = task("1").environment_digest
    assert (await images.prepare(task("1"), bundle)).built
    assert not (await images.prepare(task("2", environment_digest=same), bundle)).built
    calls = bundle.calls
    assert not (await images.prepare(task("1"), bundle)).built
    assert bundle.calls == calls


@pytest.mark.parametrize("name", ["python:3.12", "registry.example:5000/a/b@sha256:" + "a" * 64])
async def test_any_reference_that_a_cluster_can_pull_is_a_base(name: str) -> None:
    image = await prepared(PodImages(OPTIONS), task(), dockerfile(f"FROM {name}\nCOPY f /f\n", f="x"))
    assert image.reference == name
    assert image.layer


async def test_the_table_knows_a_base_with_and_without_its_default_tag() -> None:
    image = await prepared(PodImages(OPTIONS), task(), dockerfile("FROM longshore/base:latest\n"))
    assert (image.reference, image.layer) == ("registry.example/base:1", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FROM longshore/base\n\nRUN make\n", r"Dockerfile:3: RUN needs a build.*REPOSITORY:e{32} and"),
        ("FROM a AS b\nFROM b\n", r"Dockerfile:2: a second FROM.*push it as REPOSITORY:e{32}"),
        ("FROM scratch\n", r"Dockerfile:1: FROM scratch names no image that a cluster can pull"),
        ("FROM Upper\n", r"Dockerfile:1: FROM Upper names no image"),
    ],
)
async def test_what_needs_a_build_is_refused_with_its_line_and_taken_from_the_repository(
    text: str, message: str
) -> None:
    with pytest.raises(InvalidSpec, match=message):
        await prepared(PodImages(OPTIONS), task(), dockerfile(text))
    image = await prepared(PodImages(PUSHED), task(workdir="/w"), dockerfile(text))
    assert (image.reference, image.workdir, image.layer) == (f"registry.example/tasks:{'e' * 32}", "/w", "")


async def test_a_pushed_image_stands_for_unlisted_bases_and_for_layers_that_are_too_large() -> None:
    tag = f"registry.example/tasks:{'e' * 32}"
    assert (await prepared(PodImages(PUSHED), task(), dockerfile("FROM other\nCOPY f /f\n", f="x"))).reference == tag
    small = replace(PUSHED, max_layer_mb=0)
    large = dockerfile("FROM longshore/base\nCOPY f /f\n", f="x")
    assert (await prepared(PodImages(small), task(), large)).reference == tag
    listed = await prepared(PodImages(PUSHED), task(), large)
    assert (listed.reference, bool(listed.layer)) == ("registry.example/base:1", True)


async def test_no_dockerfile_and_a_named_image() -> None:
    with pytest.raises(InvalidSpec, match=r"no environment/Dockerfile and no \[environment\].docker_image; build"):
        await prepared(PodImages(OPTIONS), task(), Bundle({"instruction.md": "x"}))
    image = await prepared(PodImages(OPTIONS), task(docker_image="named:1"), dockerfile("FROM longshore/base\nRUN x\n"))
    assert (image.reference, image.layer, await PodImages(OPTIONS).layer(image)) == ("named:1", "", b"")
