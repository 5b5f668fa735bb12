"""`longshore artifact` against the controller's own handling of artifacts, on a real port."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import Result

from longshore_cli import artifacts
from longshore_common.clock import SystemClock
from longshore_common.digests import tree_digest
from longshore_controller.api.servicer import ControllerServicer
from longshore_controller.application.artifacts import ArtifactService
from longshore_controller.clients.artifact_store import FolderArtifactStore
from longshore_controller.clients.artifacts import LocalArtifacts

from .conftest import FakeController, serve_in_thread

Cli = Callable[..., Result]
MIB = 1024 * 1024


class NoRuns:
    """The store of runs, as artifacts ask it."""

    async def in_states(self, states: Any) -> list[Any]:
        return []


class Controller(FakeController):
    """Only its artifacts are real."""

    def __init__(self, base_dir: Path) -> None:
        super().__init__()
        self.base_dir = base_dir
        self.bytes = 0
        store = FolderArtifactStore(base_dir, SystemClock(), 8 * MIB)
        service = ArtifactService(NoRuns(), LocalArtifacts(base_dir, base_dir), store)  # type: ignore[arg-type]
        self._real = ControllerServicer(SimpleNamespace(artifacts=service))  # type: ignore[arg-type]

    async def PutArtifact(self, requests: Any, context: Any) -> Any:
        async def counted() -> Any:
            async for request in requests:
                self.bytes += len(request.data)
                yield request

        return await self._real.PutArtifact(counted(), context)

    async def ListArtifacts(self, request: Any, context: Any) -> Any:
        return await self._real.ListArtifacts(request, context)

    async def RemoveArtifact(self, request: Any, context: Any) -> Any:
        return await self._real.RemoveArtifact(request, context)


@pytest.fixture
def controller(tmp_path: Path) -> Controller:
    return Controller(tmp_path / "base")


@pytest.fixture
def there(cli: Cli, controller: Controller, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    """Commands that talk to it."""
    with serve_in_thread(controller, "secret") as address:
        monkeypatch.setenv("LONGSHORE_SERVER", address)
        monkeypatch.setenv("LONGSHORE_SECRET", "secret")
        yield cli


def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "deep").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "deep/weights").write_bytes(b"w" * (2 * MIB + 7))
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("config.json")
    return folder


def test_a_folder_arrives_as_it_is_and_again_sends_nothing(there: Cli, controller: Controller, tmp_path: Path) -> None:
    folder = model(tmp_path)
    pushed = there("artifact", "push", str(folder), "demo/model", "-o", "json")
    assert pushed.exit_code == 0, pushed.output
    value = json.loads(pushed.stdout)
    assert (value["name"], value["kind"], value["changed"], value["files"]) == ("demo/model", "tree", True, 4)
    assert tree_digest(controller.base_dir / "demo/model") == tree_digest(folder) == value["digest"]
    sent = controller.bytes
    again = there("artifact", "push", str(folder), "demo/model")
    assert again.exit_code == 0
    assert "is there already, with the same content" in again.stderr
    assert controller.bytes == sent


def test_files_are_listed_and_removed(there: Cli, tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text("{}\n")
    assert there("artifact", "push", str(file), "demo/lines.jsonl").exit_code == 0
    listed = json.loads(there("artifact", "list", "-o", "json").stdout)
    assert [(one["name"], one["kind"], one["bytes"]) for one in listed] == [("demo/lines.jsonl", "file", 3)]
    assert "demo/lines.jsonl  file" in there("artifact", "list").stdout
    assert there("artifact", "remove", "demo/lines.jsonl").exit_code == 0
    assert json.loads(there("artifact", "list", "-o", "json").stdout) == []
    gone = there("artifact", "remove", "demo/lines.jsonl")
    assert (gone.exit_code, "no artifact" in gone.stderr) == (2, True)


def test_what_cannot_be_pushed_is_one_line(there: Cli, tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"x" * 9 * MIB)
    for arguments, message in (
        ((str(tmp_path / "none"), "a"), "none: no such file or folder"),
        ((str(file), "../a"), "'../a' is no name for an artifact"),
        ((str(file), "a"), "artifact a is larger than 8 MiB"),
    ):
        result = there("artifact", "push", *arguments)
        assert result.exit_code == 2
        assert result.stderr.startswith("error: ")
        assert message in result.stderr, result.stderr


def test_a_file_that_becomes_shorter_while_it_is_read_says_so(
    there: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"x" * 1000)
    real = artifacts._header

    def longer(local: Path, name: str) -> Any:
        header, size = real(local, name)
        return header, size + 1

    monkeypatch.setattr(artifacts, "_header", longer)
    result = there("artifact", "push", str(file), "a")
    assert (result.exit_code, "became shorter while it was read" in result.stderr) == (2, True), result.stderr
