"""From a bundle's bytes to what the task is: safe unpacking, lint, digests. Blocking: call it in a thread."""

from __future__ import annotations

import json
import posixpath
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from longshore_common.bundle import unpack
from longshore_common.digests import digest, tree_digest
from longshore_common.errors import InvalidSpec
from longshore_task_catalog.domain.lint import DOCKERFILE, SOLUTION_SCRIPT, error, lint_config, lint_files, strip_canary
from longshore_task_catalog.domain.model import Finding, Limits, Severity, TaskContent
from longshore_task_catalog.domain.task_toml import FILE, TaskConfig, parse

CONTENT_FILES = frozenset({"task.toml", "instruction.md"})
CONTENT_FOLDERS = ("environment/", "tests/", "solution/", "steps/")
_VARIABLE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*(?::-([^}]*))?\}")


@dataclass(frozen=True)
class Inspection:
    """What a bundle holds. content is absent when there are errors."""

    content: TaskContent | None
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> list[Finding]:
        """The findings that stop the import."""
        return [finding for finding in self.findings if finding.severity is Severity.ERROR]


def is_content(path: str) -> bool:
    """Whether a file counts for the task's digest. README and other files beside the content do not."""
    return path in CONTENT_FILES or path.startswith(CONTENT_FOLDERS)


def task_digest(root: Path) -> str:
    """The task's identity."""
    return tree_digest(root, is_content)


def inspect_bundle(bundle: bytes, name: str, defaults: Limits) -> Inspection:
    """Inspects a tar.zst of a task folder. `name` is used when task.toml has no [task] name."""
    with tempfile.TemporaryDirectory(prefix="longshore-import-") as folder:
        root = Path(folder)
        try:
            unpack(bundle, root)
        except InvalidSpec as fault:
            return Inspection(None, (error("bundle-unsafe", fault.field or "bundle", fault.message),))
        return inspect_folder(root, name, defaults)


def inspect_folder(root: Path, name: str, defaults: Limits) -> Inspection:
    """Lints and digests an unpacked task."""
    findings = list(lint_files(root))
    config, toml_findings = _read_config(root)
    findings += toml_findings
    if config is not None:
        findings += lint_config(root, config)
    inspection = Inspection(None, tuple(findings))
    if config is None or inspection.errors:
        return inspection
    return Inspection(_content(root, name, config, defaults, inspection.findings), inspection.findings)


def _read_config(root: Path) -> tuple[TaskConfig | None, list[Finding]]:
    path = root / FILE
    if not path.is_file():
        return None, []
    try:
        return parse(path.read_bytes().decode("utf-8").replace("\r\n", "\n"))
    except UnicodeDecodeError as fault:
        line = path.read_bytes()[: fault.start].count(b"\n") + 1
        return None, [error("toml-broken", f"{FILE}:{line}", "not UTF-8; save the file as UTF-8")]


def _content(root: Path, name: str, config: TaskConfig, defaults: Limits, findings: tuple[Finding, ...]) -> TaskContent:
    return TaskContent(
        digest=task_digest(root),
        name=config.task.name if config.task else name,
        instruction=strip_canary((root / "instruction.md").read_text(encoding="utf-8")),
        environment_digest=_environment_digest(root, config),
        tests_digest=tree_digest(root / "tests"),
        limits=config.limits(defaults),
        metadata=json.loads(json.dumps(config.metadata, default=str)),
        workdir=config.environment.workdir or dockerfile_workdir(root / DOCKERFILE),
        agent_user=str(config.agent.user or ""),
        verifier_user=str(config.verifier.user or ""),
        has_solution=(root / SOLUTION_SCRIPT).is_file(),
        solution_env={**resolve_env(config.environment.env), **resolve_env(config.solution.env)},
        findings=findings,
        docker_image=config.environment.docker_image or "",
        network_mode=config.environment.asked_network(),
        allowed_hosts=tuple(config.environment.allowed_hosts or ()),
    )


def _environment_digest(root: Path, config: TaskConfig) -> str:
    folder = root / "environment"
    tree = tree_digest(folder) if folder.is_dir() else ""
    image = config.environment.docker_image
    return digest({"docker_image": image, "tree": tree}) if image else tree


def dockerfile_workdir(path: Path) -> str:
    """The working folder of the last stage, "/" without a Dockerfile or WORKDIR."""
    workdir = "/"
    if not path.is_file():
        return workdir
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        words = line.split(maxsplit=1)
        if len(words) == 2 and words[0].upper() == "FROM":
            workdir = "/"
        elif len(words) == 2 and words[0].upper() == "WORKDIR":
            workdir = posixpath.normpath(posixpath.join(workdir, words[1].strip().strip("\"'")))
    return workdir


def resolve_env(env: dict[str, str]) -> dict[str, str]:
    """`${VAR:-default}` becomes its default and `${VAR}` empty: the service's environment is no task's business."""
    return {name: _VARIABLE.sub(lambda match: match[1] or "", value) for name, value in env.items()}
