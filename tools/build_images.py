"""Builds the images of deploy/docker with docker, podman or buildah, whichever is there; see docs/images.md."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("LONGSHORE_CACHE") or Path.home() / ".cache/longshore") / "images"
STORAGE = CACHE / "storage"
"""buildah's storage of stand-ins and of what is made from them: never to be taken for the real ones."""
INPUTS_LABEL = "longshore.inputs"
"""Digest of all that an image is made from."""
PYTHON_BASE = "docker.io/library/python:3.11-slim-bookworm"
CERTIFICATES = Path(os.environ.get("SSL_CERT_FILE") or "/etc/ssl/certs/ca-certificates.crt")
INDEX_VARIABLES = ["PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST"]
INDEX_VARIABLES += ["UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_INDEX_STRATEGY"]
"""What of this host's environment says where Python packages come from."""


class Problem(Exception):
    """What is wrong and what to do about it; ends the program with status 2."""


@dataclass(frozen=True)
class Image:
    """How one image is made."""

    dockerfile: str
    """Relative to the repository."""

    args: Mapping[str, str] = field(default_factory=dict)
    requirements: str = ""
    """Of images with our Python packages: the pins' name in requirements/. Their context is the repository."""

    program: tuple[str, str] | None = None
    """Of images of one Go program: its build script and file name. Their context is a folder of it alone."""

    base: str = ""
    """Value of the Dockerfile's BASE."""


def _python(dockerfile: str, requirements: str) -> Image:
    args = {"REQUIREMENTS": requirements}
    return Image(f"deploy/docker/{dockerfile}.Dockerfile", args, requirements, base=PYTHON_BASE)


IMAGES = {
    "service": _python("service", "services"),
    "trainer": _python("trainer", "trainer"),
    "engine-cpu": _python("engine-cpu", "engine-cpu"),
    "engine-gpu": _python("engine-gpu", "engine-gpu"),
    "cpu": _python("engine-cpu", "cpu"),
    "agent": Image("deploy/docker/agent.Dockerfile", program=("tools/build_agent.sh", "longshore-agent")),
    "egress-proxy": Image(
        "deploy/docker/egress-proxy.Dockerfile", program=("tools/build_egress_proxy.sh", "egress-proxy")
    ),
    "base": Image("deploy/docker/base.Dockerfile", base=PYTHON_BASE),
}
DEFAULT = [name for name in IMAGES if name != "cpu"]
"""`cpu` is engine and trainer in one, for one host and for the tests' cluster."""

STAND_INS = {
    "python": (PYTHON_BASE, "tests/cluster/bases/python.Dockerfile"),
    "postgres": ("docker.io/library/postgres:15", "tests/cluster/bases/postgres.Dockerfile"),
    "redis": ("docker.io/library/redis:7", "tests/cluster/bases/redis.Dockerfile"),
}
DEBIAN = ("localhost/longshore-test/debian:bookworm", "tests/cluster/bases/debian.Dockerfile")


@dataclass(frozen=True)
class Builder:
    """One of docker, podman and buildah, whose command lines differ little."""

    engine: str
    local: bool = False
    """Stand-ins: buildah in a storage of its own."""

    def __call__(self, *args: str, output: bool = False) -> str:
        """Runs it, and gives its stdout with `output`; raises Problem where it fails."""
        try:
            done = subprocess.run(
                [*self._command(), *args], env=self._environment(), check=True, text=True,
                stdout=subprocess.PIPE if output else sys.stderr, stderr=subprocess.PIPE if output else None,
            )  # fmt: skip
        except subprocess.CalledProcessError as error:
            said = f": {error.stderr.strip()}" if error.stderr else "; see its output above"
            raise Problem(f"`{self.engine} {shlex.join(args)}` failed{said}") from error
        return done.stdout or ""

    def _command(self) -> list[str]:
        if not self.local:
            return [self.engine]
        driver = os.environ.get("STORAGE_DRIVER", "overlay")
        return ["buildah", "--root", str(STORAGE), "--runroot", str(CACHE / "run"), "--storage-driver", driver]

    def _environment(self) -> dict[str, str]:
        more = {"DOCKER_BUILDKIT": "1"}
        if self.local:
            more |= {"BUILDAH_ISOLATION": "oci", "BUILDAH_RUNTIME": "runc"}
        return more | os.environ

    def label(self, ref: str, name: str) -> str:
        """A label of an image; empty without the image or the label."""
        what = ["inspect", "--type", "image"] if self.engine == "buildah" else ["image", "inspect"]
        labels = ".OCIv1.Config.Labels" if self.engine == "buildah" else ".Config.Labels"
        try:
            return self(*what, "--format", f'{{{{index {labels} "{name}"}}}}', ref, output=True).strip()
        except Problem:
            return ""

    def size(self, ref: str) -> str:
        """For people: `678 MB`."""
        return self("images", "--format", "{{.Size}}", ref, output=True).split("\n")[0]

    def build(
        self, ref: str, dockerfile: Path, context: Path, args: Mapping[str, str], labels: Mapping[str, str]
    ) -> None:
        """Makes the image of that name."""
        command = ["build", "--file", str(dockerfile), "--tag", ref]
        if self.engine != "docker":
            command += ["--layers", "--format", "oci"]
        if self.local:
            command += ["--network", "host", "--pull=never"]
        for option, pairs in (("--build-arg", args), ("--label", labels)):
            command += [word for name, value in pairs.items() for word in (option, f"{name}={value}")]
        with _secrets() as secrets:
            self(*command, *secrets, str(context))

    def push(self, ref: str) -> str:
        """Pushes to the registry of the name; the manifest's digest."""
        if self.engine == "docker":
            self("push", ref)
            digest = self("image", "inspect", "--format", "{{index .RepoDigests 0}}", ref, output=True)
            return digest.strip().rpartition("@")[2]
        with tempfile.NamedTemporaryFile("r") as file:
            self("push", "--digestfile", file.name, ref)
            return file.read().strip()


@contextlib.contextmanager
def _secrets() -> Iterator[list[str]]:
    """Options that lend a build this host's certificates and package indexes; no layer keeps them."""
    with tempfile.TemporaryDirectory() as folder:
        options = []
        if CERTIFICATES.is_file():
            options += ["--secret", f"id=ca,src={CERTIFICATES}"]
        lines = [f"{name}={shlex.quote(os.environ[name])}\n" for name in INDEX_VARIABLES if os.environ.get(name)]
        if lines:
            index = Path(folder) / "index"
            index.write_text("".join(lines))
            options += ["--secret", f"id=index,src={index}"]
        yield options


def find_builder(wanted: str | None, local: bool) -> Builder:
    """The builder to use; raises Problem where there is none."""
    if local and wanted not in (None, "buildah"):
        raise Problem(f"--local-bases works with buildah only, not with {wanted}: leave out --engine {wanted}")
    candidates = ["buildah"] if local else [wanted] if wanted else ["docker", "podman", "buildah"]
    reasons = []
    for engine in candidates:
        if not shutil.which(engine):
            reasons.append(f"no {engine} on PATH")
        elif engine == "docker" and subprocess.run(["docker", "info"], capture_output=True).returncode:
            reasons.append("docker is installed, but its daemon does not answer")
        else:
            return Builder(engine, local)
    hint = (
        "apt-get install buildah runc debootstrap" if local else "start Docker, or apt-get install buildah (or podman)"
    )
    raise Problem(f"no image builder: {', '.join(reasons)}. To get one: {hint}")


def _digest(paths: Sequence[Path], *more: str) -> str:
    """Of files, all files of folders, and further texts."""
    total = hashlib.sha256(json.dumps(more).encode())
    for path in paths:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                mode = file.stat().st_mode & 0o111
                total.update(f"{file.relative_to(path.parent)} {mode} {file.stat().st_size}\n".encode())
                total.update(file.read_bytes())
    return total.hexdigest()


def inputs(image: Image, context: Path, base: str) -> str:
    """Digest of what an image is made from; `base` says which base."""
    paths = [ROOT / image.dockerfile]
    if image.requirements:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())
        packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
        pins = [f"requirements/{name}.txt" for name in (image.requirements, "images")]
        paths += [ROOT / name for name in ("pyproject.toml", "README.md", "deploy/docker/steps", *pins, *packages)]
    elif image.program:
        paths.append(context)
    return _digest(paths, json.dumps(dict(image.args), sort_keys=True), base)


def version() -> str:
    """Of the Python package, and so the default tag."""
    found: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return found


def _revision() -> str:
    git = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    done = subprocess.run(git, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


@contextlib.contextmanager
def _context(image: Image) -> Iterator[Path]:
    if image.requirements:
        yield ROOT
        return
    with tempfile.TemporaryDirectory() as folder:
        if image.program:
            script, name = image.program
            try:
                subprocess.run([ROOT / script, f"{folder}/{name}"], check=True, stdout=sys.stderr)
            except subprocess.CalledProcessError as error:
                raise Problem(f"{script} failed; see its output above") from error
        yield Path(folder)


@dataclass(frozen=True)
class Build:
    """One call of `build`."""

    builder: Builder
    registry: str
    tag: str
    base: str | None
    changed: bool

    def reference(self, name: str) -> str:
        """Full name of an image."""
        if name in STAND_INS:
            return STAND_INS[name][0]
        return f"{self.registry.rstrip('/')}/longshore/{name}:{self.tag}"

    def image(self, name: str) -> None:
        """Makes one of ours."""
        image = IMAGES[name]
        ref, base = self.reference(name), (self.base or image.base) if image.base else ""
        with _context(image) as context:
            key = inputs(image, context, self.builder.label(base, INPUTS_LABEL) or base)
            args = {"BASE": base, **image.args} if base else {}
            labels = {INPUTS_LABEL: key}
            if image.requirements:
                args |= {"VERSION": version(), "REVISION": _revision()}
                labels["org.opencontainers.image.title"] = f"longshore/{name}"
            self._unless_same(ref, image.dockerfile, context, args, labels)

    def stand_in(self, ref: str, dockerfile: str, context: Path, below: str = "") -> None:
        """Makes the stand-in of an image that cannot be pulled, from the stand-in `below`."""
        key = _digest([ROOT / dockerfile, *sorted(context.iterdir())], self.builder.label(below, INPUTS_LABEL))
        self._unless_same(ref, dockerfile, context, {}, {INPUTS_LABEL: key})

    def _unless_same(
        self, ref: str, dockerfile: str, context: Path, args: Mapping[str, str], labels: Mapping[str, str]
    ) -> None:
        if self.changed and self.builder.label(ref, INPUTS_LABEL) == labels[INPUTS_LABEL]:
            print(f"images: {ref}: unchanged", file=sys.stderr)
            return
        print(f"images: {ref}", file=sys.stderr)
        self.builder.build(ref, ROOT / dockerfile, context, args, labels)


def _debian_root() -> Path:
    """The folder of debian.tar, a minimal Debian; made once (about a minute)."""
    folder = CACHE / "debian"
    archive = folder / "debian.tar"
    if archive.exists():
        return folder
    if not shutil.which("debootstrap"):
        raise Problem("stand-ins of base images need debootstrap: apt-get install debootstrap")
    print("images: debootstrap of Debian 12 (about a minute)", file=sys.stderr)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        root, part = f"{scratch}/root", f"{scratch}/debian.tar"
        tar = [
            "tar",
            "--sort=name",
            "--numeric-owner",
            "--exclude=./var/cache/apt/*",
            "--exclude=./var/lib/apt/lists/*",
        ]
        try:
            subprocess.run(["debootstrap", "--variant=minbase", "bookworm", root], check=True, stdout=sys.stderr)
            subprocess.run([*tar, "--exclude=./dev/*", "-C", root, "-cf", part, "."], check=True)
        except subprocess.CalledProcessError as error:
            raise Problem(f"{error.cmd[0]} failed; it needs root and a Debian mirror: see its output above") from error
        os.replace(part, archive)
    return folder


def _stand_ins(build: Build, names: Sequence[str]) -> None:
    build.stand_in(*DEBIAN, _debian_root())
    with tempfile.TemporaryDirectory() as empty:
        for name in dict.fromkeys(["python", *(name for name in names if name in STAND_INS)]):
            build.stand_in(*STAND_INS[name], Path(empty), below=DEBIAN[0])


def write_layout(builder: Builder, folder: Path, refs: Sequence[str]) -> None:
    """Writes images, uncompressed, into an OCI layout, and removes the blobs that none of its images has any more."""
    folder.mkdir(parents=True, exist_ok=True)
    for ref in refs:
        builder("push", "--quiet", "--disable-compression", ref, f"oci:{folder}:{ref}")
    blobs = folder / "blobs/sha256"
    needed = set()
    for entry in json.loads((folder / "index.json").read_text())["manifests"]:
        manifest = json.loads((blobs / entry["digest"].removeprefix("sha256:")).read_text())
        needed |= {blob["digest"] for blob in (entry, manifest["config"], *manifest["layers"])}
    for blob in blobs.iterdir():
        if f"sha256:{blob.name}" not in needed:
            blob.unlink()


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("images: waiting for another build", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/images", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="build")
    build = verbs.add_parser("build", help="build images and print their sizes")
    build.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(IMAGES)}; all but cpu when left out")
    build.add_argument("--engine", choices=("docker", "podman", "buildah"), help="default: the first that is there")
    build.add_argument("--registry", default="docker.io", help="names are REGISTRY/longshore/NAME:TAG (%(default)s)")
    build.add_argument("--tag", default=version(), help="default: the version, %(default)s")
    build.add_argument("--base", help=f"Python base image, with a digest for builds to repeat ({PYTHON_BASE})")
    build.add_argument("--push", action="store_true", help="push them, and print their digests")
    build.add_argument("--changed", action="store_true", help="only images whose inputs changed since their last build")
    local = "for tests: make the base images here, from debootstrap; also allows the names postgres and redis"
    build.add_argument("--local-bases", action="store_true", help=local)
    build.add_argument("--oci", type=Path, metavar="DIR", help="also write them into an OCI layout (needs buildah)")
    return parser.parse_args()


def _check(wanted: argparse.Namespace, names: Sequence[str]) -> None:
    known = [*IMAGES, *(STAND_INS if wanted.local_bases else ())]
    for name in names:
        if name not in known:
            raise Problem(f"no image {name!r}: there are {', '.join(known)}")
    if wanted.local_bases and (wanted.push or wanted.base):
        raise Problem("--local-bases makes images for tests only: leave out --push and --base")


def _run(wanted: argparse.Namespace) -> None:
    names = list(dict.fromkeys(wanted.names)) or DEFAULT
    _check(wanted, names)
    builder = find_builder(wanted.engine, wanted.local_bases)
    if wanted.oci and builder.engine != "buildah":
        raise Problem(f"--oci needs buildah, not {builder.engine}: --engine buildah")
    build = Build(builder, wanted.registry, wanted.tag, wanted.base, wanted.changed)
    with _one_at_a_time():
        if wanted.local_bases:
            _stand_ins(build, names)
        for name in names:
            if name in IMAGES:
                build.image(name)
        refs = [build.reference(name) for name in names]
        if wanted.local_bases:
            builder("rmi", "--prune", output=True)
        if wanted.oci:
            write_layout(builder, wanted.oci, refs)
    width = max(map(len, refs))
    for ref in refs:
        print(f"{ref:{width}}  {builder.size(ref):>8}", f"  {builder.push(ref)}" if wanted.push else "")


def main() -> int:
    """Exit status: 0, or 2 after an error."""
    try:
        _run(_arguments())
    except Problem as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
