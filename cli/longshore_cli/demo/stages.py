"""Stages with markers: done is what has a marker whose inputs are these and whose outputs still have these digests.

A stage's outputs that merely exist prove nothing: an interrupted one may have left half of them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longshore_cli.local.home import Home
from longshore_cli.report.render import write_atomic
from longshore_common.digests import digest, digest_file, tree_digest


class Markers:
    """Markers of one home, in HOME/stages."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._folder = home.path / "stages"

    def read(self, name: str) -> dict[str, Any] | None:
        """The marker as written, believed without looking at the outputs."""
        try:
            value = json.loads((self._folder / f"{name}.json").read_text())
        except (OSError, ValueError):
            return None
        return value if isinstance(value, dict) else None

    async def done(self, name: str, inputs: Mapping[str, Any]) -> bool:
        """Whether the stage ran to its end with these inputs and nothing has changed since."""
        marker = self.read(name)
        if marker is None or marker.get("inputs") != digest(dict(inputs)):
            return False
        return await asyncio.to_thread(self._outputs_unchanged, marker.get("outputs", {}))

    def _outputs_unchanged(self, outputs: Mapping[str, str]) -> bool:
        try:
            return all(_digest_of(self._home.path / name) == found for name, found in outputs.items())
        except OSError:
            return False

    async def mark(
        self, name: str, inputs: Mapping[str, Any], outputs: list[Path], notes: Mapping[str, Any] | None = None
    ) -> None:
        """Records the stage as done. Outputs are files or folders inside the home."""
        digests = await asyncio.to_thread(
            lambda: {str(path.relative_to(self._home.path)): _digest_of(path) for path in outputs}
        )
        self._folder.mkdir(parents=True, exist_ok=True)
        value = {"inputs": digest(dict(inputs)), "outputs": digests, "notes": dict(notes or {})}
        write_atomic(self._folder / f"{name}.json", json.dumps(value, indent=2) + "\n")


def _digest_of(path: Path) -> str:
    return tree_digest(path) if path.is_dir() else digest_file(path)
