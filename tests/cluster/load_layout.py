"""Loads images of an OCI layout into containerd, only what it lacks: load_layout.py LAYOUT SOCKET CONTENT NAME...

CONTENT is the folder of containerd's own blobs; a large blob that both have is kept once, as a hard link.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LARGE = 100_000_000
"""Bytes from which a blob is worth a hard link."""
REF = "org.opencontainers.image.ref.name"


@dataclass(frozen=True)
class Layout:
    """A folder of images as of the OCI image specification."""

    folder: Path

    def index_of(self, name: str) -> dict[str, Any]:
        """The index with nothing but this image, under its full name; raises SystemExit without one."""
        for entry in json.loads((self.folder / "index.json").read_text())["manifests"]:
            if entry.get("annotations", {}).get(REF) == name:
                annotations = {"io.containerd.image.name": name}
                return {"schemaVersion": 2, "manifests": [{**entry, "annotations": annotations}]}
        raise SystemExit(f"cluster: error: {self.folder} has no image {name}")

    def blob(self, digest: str) -> Path:
        """Where a blob lies."""
        return self.folder / "blobs" / digest.replace(":", "/")

    def digests(self, manifest: str) -> list[str]:
        """Of an image's manifest, configuration and layers."""
        content = json.loads(self.blob(manifest).read_text())
        return [manifest, *(blob["digest"] for blob in (content["config"], *content["layers"]))]


@dataclass(frozen=True)
class Containerd:
    """The namespace of Kubernetes in a containerd."""

    socket: str

    def start(self, *args: str, **more: Any) -> subprocess.Popen[bytes]:
        """A `ctr` command."""
        return subprocess.Popen(["ctr", "-a", self.socket, "-n", "k8s.io", *args], **more)

    def rows(self, *args: str) -> Iterator[list[str]]:
        """The table that a `ctr` command prints, without its heading."""
        process = self.start(*args, stdout=subprocess.PIPE)
        out, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"cluster: error: `ctr {' '.join(args)}` failed, see above")
        return (line.split() for line in out.decode().splitlines()[1:])


def load(layout: Layout, containerd: Containerd, name: str) -> bool:
    """Imports an image; False where containerd has the same already."""
    index = layout.index_of(name)
    manifest = index["manifests"][0]["digest"]
    if [name, manifest] in ([row[0], row[2]] for row in containerd.rows("images", "ls")):
        return False
    there = {row[0] for row in containerd.rows("content", "ls")}
    process = containerd.start("images", "import", "-", stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stdin
    with process.stdin, tarfile.open(fileobj=process.stdin, mode="w|") as archive:
        for path, content in (("oci-layout", {"imageLayoutVersion": "1.0.0"}), ("index.json", index)):
            data = json.dumps(content).encode()
            info = tarfile.TarInfo(path)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for digest in layout.digests(manifest):
            # The manifest always goes along: importing looks into it before it looks into the store.
            if digest == manifest or digest not in there:
                archive.add(layout.blob(digest), f"blobs/{digest.replace(':', '/')}")
    if process.wait():
        raise SystemExit(f"cluster: error: containerd did not import {name}, see above")
    return True


def link_large(layout: Layout, content: Path, name: str) -> None:
    """Keeps the large blobs of an image once on disk, where both folders are on one file system."""
    for digest in layout.digests(layout.index_of(name)["manifests"][0]["digest"]):
        ours, theirs = layout.blob(digest), content / digest.replace(":", "/")
        if ours.stat().st_size < LARGE or not theirs.exists() or ours.stat().st_dev != theirs.stat().st_dev:
            continue
        if not ours.samefile(theirs):
            link = ours.with_suffix(".link")
            link.unlink(missing_ok=True)
            os.link(theirs, link)
            os.replace(link, ours)


def main() -> None:
    layout, containerd, content = Layout(Path(sys.argv[1])), Containerd(sys.argv[2]), Path(sys.argv[3])
    for name in sys.argv[4:]:
        loaded = load(layout, containerd, name)
        link_large(layout, content, name)
        print(f"cluster: {name}: {'loaded' if loaded else 'already there'}", file=sys.stderr)


if __name__ == "__main__":
    main()
