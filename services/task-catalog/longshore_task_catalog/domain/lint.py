"""Rules over a task's files. A finding of severity error means that the task cannot be used and is not stored."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from longshore_common.digests import walk_files
from longshore_task_catalog.domain.model import Finding, Severity
from longshore_task_catalog.domain.task_toml import FILE, AgentTable, TaskConfig, VerifierTable

TEST_SCRIPT = "tests/test.sh"
SOLUTION_SCRIPT = "solution/solve.sh"
DOCKERFILE = "environment/Dockerfile"
COMPOSE = ("environment/docker-compose.yaml", "environment/docker-compose.yml")
_REWARD_FILE = re.compile(r"reward\.(txt|json)")
_DOWNLOAD = re.compile(
    r"^\s*(?:sudo\s+)?(apt-get|apt|apk|curl|wget|pip3?\s+install|uvx?|npm\s+(?:ci|install)|git\s+clone)\b"
)


def error(rule: str, where: str, message: str) -> Finding:
    """A finding that stops the import."""
    return Finding(Severity.ERROR, rule, where, message)


def warning(rule: str, where: str, message: str) -> Finding:
    """A finding that does not."""
    return Finding(Severity.WARNING, rule, where, message)


def lint_files(root: Path) -> Iterator[Finding]:
    """What can be said without reading task.toml."""
    if not (root / FILE).is_file():
        yield error("toml-missing", FILE, "the task has no task.toml; a task is a folder with one")
    yield from _lint_instruction(root)
    yield from _lint_tests(root)
    yield from _lint_environment(root)
    if not (root / SOLUTION_SCRIPT).is_file():
        message = "no oracle: the task can be imported but not probed, so it never becomes evaluable"
        yield warning("solution-missing", SOLUTION_SCRIPT, message)
    yield from _lint_scripts(root)


def _lint_instruction(root: Path) -> Iterator[Finding]:
    path = root / "instruction.md"
    if not path.is_file():
        yield error("instruction-missing", "instruction.md", "the agent would not know what to do; write it")
        return
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as fault:
        yield error("instruction-encoding", "instruction.md", f"not UTF-8 at byte {fault.start}; save it as UTF-8")
        return
    if not strip_canary(text).strip():
        yield error("instruction-empty", "instruction.md", "the agent would not know what to do; write it")


def strip_canary(text: str) -> str:
    """The instruction without leading canary comment lines, as Harbor shows it to the agent."""
    lines = text.splitlines(keepends=True)
    index = 0
    while index < len(lines) and "canary" in lines[index].lower() and lines[index].lstrip().startswith(("#", "<!--")):
        index += 1
    return "".join(lines[index:]).lstrip("\n") if index else text


def _lint_tests(root: Path) -> Iterator[Finding]:
    path = root / TEST_SCRIPT
    if not path.is_file():
        yield error(
            "tests-missing", TEST_SCRIPT, "nothing can be graded without it; write a script that writes a reward"
        )
        return
    text = path.read_text(encoding="utf-8", errors="replace")
    paths = (root / "tests" / relative for relative in walk_files(root / "tests"))
    if not any(_mentions_reward(other) for other in paths if other.is_file()):
        message = "nothing in tests/ names reward.txt or reward.json; it must write /logs/verifier/reward.txt"
        yield warning("reward-not-written", TEST_SCRIPT, message)
    for number, line in enumerate(text.splitlines(), 1):
        if match := _DOWNLOAD.match(line):
            message = f"{match[1]} needs a network, which sandboxes do not have; install it in the Dockerfile"
            yield warning("tests-need-network", f"{TEST_SCRIPT}:{number}", message)


def _mentions_reward(path: Path) -> bool:
    return bool(_REWARD_FILE.search(path.read_text(encoding="utf-8", errors="replace")))


def _lint_environment(root: Path) -> Iterator[Finding]:
    if compose := _compose_file(root):
        message = "several containers need the scheduler's pod runtime; the local runtime refuses this task"
        yield warning("compose-needs-pods", compose, message)


def _compose_file(root: Path) -> str | None:
    return next((name for name in COMPOSE if (root / name).is_file()), None)


def _lint_scripts(root: Path) -> Iterator[Finding]:
    """CRLF breaks `#!/bin/sh` and every line of a script (SWE-bench#652, #661; pier#18)."""
    for relative in sorted(walk_files(root)):
        path = root / relative
        if relative != DOCKERFILE and not relative.endswith(".sh"):
            continue
        if path.is_file() and b"\r\n" in (data := path.read_bytes()):
            line = data.split(b"\r\n", 1)[0].count(b"\n") + 1
            message = "Windows line ends (CRLF) break shells and Dockerfiles; convert the file to LF"
            yield error("crlf", f"{relative}:{line}", message)


def lint_config(root: Path, config: TaskConfig) -> Iterator[Finding]:
    """What task.toml asks for and Longshore does otherwise, or not at all."""
    if config.task is None:
        yield warning("name-missing", FILE, 'no [task] name; the folder\'s name is used; add name = "org/name"')
    described = (root / DOCKERFILE).is_file() or config.environment.docker_image or _compose_file(root)
    if not described:
        yield error("environment-missing", DOCKERFILE, "no Dockerfile and no [environment].docker_image: no image")
    yield from _lint_unsupported(root, config)
    yield from _lint_network(config)
    yield from _lint_ignored(config)


def _lint_unsupported(root: Path, config: TaskConfig) -> Iterator[Finding]:
    environment = config.environment
    if config.steps or (root / "steps").is_dir():
        yield error("unsupported", "steps", "tasks of several steps are not supported; make one task of each step")
    if config.verifier.environment_mode == "separate" or config.verifier.environment is not None:
        yield error(
            "unsupported", FILE, "[verifier] with an environment of its own is not supported; grade in the task's"
        )
    if (root / "tests/Dockerfile").is_file():
        yield error("unsupported", "tests/Dockerfile", "a verifier image of its own is not supported; use the task's")
    if environment.os == "windows":
        yield error("unsupported", FILE, 'os = "windows" is not supported')
    if environment.gpus or environment.tpu:
        yield error("unsupported", FILE, "[environment] asks for accelerators; sandboxes have none")


def _lint_network(config: TaskConfig) -> Iterator[Finding]:
    environment = config.environment
    asked = environment.asked_network()
    if asked in ("public", "allowlist"):
        message = (
            f"[environment] asks for network {asked!r}: granted only by runtimes that can (a cluster's pod runtime); "
            "elsewhere the sandbox has none"
        )
        yield warning("network-needs-pods", FILE, message)
    tables: dict[str, AgentTable | VerifierTable] = {"agent": config.agent, "verifier": config.verifier}
    for name, table in tables.items():
        if table.network_mode is not None and table.network_mode != asked:
            message = f"[{name}] network_mode has no effect: a sandbox has one network, that of [environment]"
            yield warning("ignored-field", FILE, message)
    if environment.allow_internet is not None:
        yield warning("deprecated-field", FILE, 'environment.allow_internet is old; write network_mode = "no-network"')
    for old in ("memory", "storage"):
        if getattr(environment, old) is not None:
            yield warning("deprecated-field", FILE, f"environment.{old} is old; write {old}_mb = <MiB>")


def _lint_ignored(config: TaskConfig) -> Iterator[Finding]:
    environment = config.environment
    ignored = {
        "environment.healthcheck": environment.healthcheck,
        "environment.mcp_servers": environment.mcp_servers,
        "environment.skills_dir": environment.skills_dir,
        "verifier.collect": config.verifier.collect,
        "artifacts": config.artifacts,
    }
    for name, value in ignored.items():
        if value:
            yield warning("ignored-field", FILE, f"{name} has no effect in Longshore")
    if environment.docker_image:
        message = "docker_image must be known to the scheduler (a local base, or an image the cluster can pull)"
        yield warning("docker-image", FILE, message)
    for table, values in (("environment", environment.env), ("solution", config.solution.env)):
        for name, value in values.items():
            if "${" in value:
                yield warning("host-variable", FILE, f"[{table}].env {name}: ${{...}} is not read from this host")
