"""Base root trees: small copies of this machine's programs and the libraries they need."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from longshore_common.digests import digest
from longshore_common.errors import Unavailable
from longshore_sandbox_scheduler.domain.bases import BaseRecipe
from longshore_sandbox_scheduler.runtimes.bubblewrap.trees import layer_digest, own_tree, replace_folder

_FORMAT = 1
"""Raise it when the same recipe and programs give another tree."""

_SEARCH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_FOLDERS: tuple[tuple[str, int], ...] = (
    ("usr/bin", 0o755), ("usr/lib", 0o755), ("usr/lib64", 0o755), ("usr/sbin", 0o755), ("usr/local/bin", 0o755),
    ("usr/share", 0o755), ("etc", 0o755), ("dev", 0o755), ("proc", 0o755), ("sys", 0o755), ("run", 0o755),
    ("root", 0o700), ("home", 0o755), ("opt", 0o755), ("srv", 0o755), ("mnt", 0o755), ("tmp", 0o1777),
    ("var/tmp", 0o1777), ("var/log", 0o755), ("var/lib", 0o755), ("app", 0o755), ("logs/agent", 0o777),
    ("logs/verifier", 0o777), ("logs/artifacts", 0o777),
)  # fmt: skip
_LINKS = (("bin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64"), ("sbin", "usr/sbin"), ("var/run", "../run"))
_FILES = {
    "etc/passwd": (
        "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n"
        "bin:x:2:2:bin:/bin:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    ),
    "etc/group": "root:x:0:\ndaemon:x:1:\nbin:x:2:\ntty:x:5:\nusers:x:100:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "etc/hostname": "sandbox\n",
    "etc/resolv.conf": "",
    "etc/os-release": 'NAME="Longshore base"\nID=longshore\nPRETTY_NAME="Longshore local base tree"\n',
}
_PYTHON_LEFT_OUT = ("test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "site-packages")


@dataclass(frozen=True)
class BaseTree:
    """A finished base: key names the folder under the cache's `bases`."""

    name: str
    key: str
    path: Path
    digest: str


@dataclass(frozen=True)
class _Program:
    source: Path
    destination: str


class BaseTrees:
    """Builds each base at most once per content; several processes may share the folder."""

    def __init__(self, folder: Path, recipes: Mapping[str, BaseRecipe], owner_uid: int | None) -> None:
        self._folder = folder
        self._recipes = recipes
        self._owner_uid = owner_uid
        self._known: dict[str, BaseTree] = {}

    def get(self, name: str) -> BaseTree:
        """The tree of a name in the table. Blocking.

        Raises:
            Unavailable: the host lacks a program of the recipe.
        """
        if name not in self._known:
            self._known[name] = self._find_or_build(name, self._recipes[name])
        return self._known[name]

    def _find_or_build(self, name: str, recipe: BaseRecipe) -> BaseTree:
        programs = _programs(name, recipe)
        key = _key(recipe, programs, self._owner_uid)
        final = self._folder / key
        if not (final / "meta.json").exists():
            self._build(recipe, programs, final)
        meta = json.loads((final / "meta.json").read_text())
        return BaseTree(name, key, final / "tree", meta["digest"])

    def _build(self, recipe: BaseRecipe, programs: list[_Program], final: Path) -> None:
        temporary = self._folder / f".tmp-{os.getpid()}-{secrets.token_hex(4)}"
        tree = temporary / "tree"
        tree.mkdir(parents=True)
        temporary.chmod(0o755)
        tree.chmod(0o755)
        _write_skeleton(tree)
        for program in programs:
            _copy(program.source, tree / program.destination.lstrip("/"))
        for folder in recipe.folders:
            shutil.copytree(folder, tree / folder.lstrip("/"), symlinks=True, dirs_exist_ok=True)
        sources = [program.source for program in programs]
        if recipe.python:
            sources += _copy_python(tree)
        for library in _libraries(sources):
            _copy(library, tree / str(library).lstrip("/"))
        value = layer_digest(tree)
        own_tree(tree, self._owner_uid)
        (temporary / "meta.json").write_text(json.dumps({"digest": value, "recipe": recipe.model_dump()}))
        replace_folder(temporary, final)


def _programs(name: str, recipe: BaseRecipe) -> list[_Program]:
    search = os.pathsep.join(filter(None, (_SEARCH, os.environ.get("PATH", ""))))
    found = []
    for program in (*recipe.programs, *recipe.optional_programs):
        path = shutil.which(program, path=search)
        if path is not None:
            found.append(_Program(Path(path).resolve(), f"/usr/bin/{program}"))
        elif program in recipe.programs:
            raise Unavailable(f"base {name!r} needs the program {program!r}, which this machine lacks", retryable=False)
    return found


def _key(recipe: BaseRecipe, programs: list[_Program], owner: int | None) -> str:
    def identity(path: Path) -> list[object]:
        status = path.stat()
        return [str(path), status.st_size, status.st_mtime_ns]

    # Library upgrades run ldconfig, which rewrites its cache.
    cache = Path("/etc/ld.so.cache")
    inputs = [[*identity(program.source), program.destination] for program in programs]
    libraries = identity(cache) if cache.exists() else []
    python = identity(_python()) if recipe.python else []
    value = digest([_FORMAT, recipe.model_dump(mode="json"), inputs, libraries, python, owner])
    return value.removeprefix("sha256:")[:24]


def _write_skeleton(tree: Path) -> None:
    for folder, mode in _FOLDERS:
        (tree / folder).mkdir(parents=True, exist_ok=True)
        (tree / folder).chmod(mode)
    for link, target in _LINKS:
        (tree / link).symlink_to(target)
    for file, text in _FILES.items():
        (tree / file).write_text(text)
        (tree / file).chmod(0o644)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    # Without set-uid bits: nothing in a sandbox may gain privileges.
    target.chmod(0o755 if os.access(source, os.X_OK) or ".so" in source.name else 0o644)


def _libraries(files: Iterable[Path]) -> list[Path]:
    """Shared libraries of the files, by the host's loader; their paths as the loader looks for them."""
    names = [str(file) for file in files]
    listing = subprocess.run(["ldd", *names], capture_output=True, text=True, check=False).stdout
    found: set[str] = set()
    for line in listing.splitlines():
        if line.startswith("\t"):
            found.update(word for word in line.split() if word.startswith("/"))
    found.update(str(path) for path in Path("/lib").glob("*/libnss_files.so.2"))
    return [Path(path) for path in sorted(found)]


def _python() -> Path:
    system = Path("/usr/bin/python3")
    return system.resolve() if system.exists() else Path(sys.base_prefix, "bin", "python3").resolve()


def _copy_python(tree: Path) -> list[Path]:
    """Copies interpreter and standard library; gives the files whose libraries are needed too."""
    program = _python()
    code = "import sysconfig; print(sysconfig.get_path('stdlib'))"
    stdlib = Path(
        subprocess.run([program, "-I", "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    )
    prefix = "usr" if str(stdlib).startswith("/usr/lib") else "usr/local"
    target = tree / prefix / "lib" / stdlib.name
    ignored = shutil.ignore_patterns(*_PYTHON_LEFT_OUT, "config-*", "*.a")
    shutil.copytree(stdlib, target, ignore=ignored, symlinks=False, ignore_dangling_symlinks=True, dirs_exist_ok=True)
    binary = tree / prefix / "bin" / "python3"
    _copy(program, binary)
    for alias in ("python", stdlib.name):
        (binary.parent / alias).symlink_to("python3")
    return [program, *target.glob("lib-dynload/*.so")]
