"""Makes a one-layer image archive: make_image.py OUT.tar NAME LAYER.tar [options]; the same layer, the same archive."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import tarfile
from pathlib import Path


def _without_time(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """The same layer gives the same archive."""
    info.mtime = info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("name")
    parser.add_argument("layer", type=Path)
    parser.add_argument("--entrypoint")
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--workdir", default="")
    parser.add_argument("--user", default="")
    wanted = parser.parse_args()
    with wanted.layer.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    settings = {"Env": wanted.env, "WorkingDir": wanted.workdir, "User": wanted.user}
    if wanted.entrypoint:
        settings["Entrypoint"] = [wanted.entrypoint]
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": settings,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        },
        sort_keys=True,
    ).encode()
    config_name = hashlib.sha256(config).hexdigest() + ".json"
    layer_name = f"{digest}/layer.tar"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [wanted.name], "Layers": [layer_name]}]).encode()
    with tarfile.open(wanted.out, "w") as archive:
        for name, content in ((config_name, config), ("manifest.json", manifest)):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        archive.add(wanted.layer, layer_name, filter=_without_time)


if __name__ == "__main__":
    main()
