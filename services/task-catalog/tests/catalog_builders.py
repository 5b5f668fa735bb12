"""Task folders, bundles and domain values for tests."""

from __future__ import annotations

from pathlib import Path

from longshore_common.bundle import pack_folder
from longshore_task_catalog.domain.model import Evidence, EvidenceKind, Limits, Task, TaskContent

FILES = {
    "task.toml": 'schema_version = "1.3"\n\n[task]\nname = "acme/count"\n\n[metadata]\nskill = "count"\n',
    "instruction.md": "Count the lines of data.txt into out.txt\n",
    "environment/Dockerfile": "FROM longshore/base\nWORKDIR /app\nCOPY data.txt /app/\n",
    "environment/data.txt": "a\nb\n",
    "tests/test.sh": '#!/bin/sh\n[ "$(cat /app/out.txt)" = 2 ] && echo 1 > /logs/verifier/reward.txt\n',
    "solution/solve.sh": "#!/bin/sh\nwc -l < data.txt > out.txt\n",
    "README.md": "for people\n",
}


def write_task(root: Path, changes: dict[str, str | None] | None = None) -> Path:
    """A task folder; changes replace files, None leaves one out."""
    for relative, text in {**FILES, **(changes or {})}.items():
        if text is None:
            continue
        path = root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    return root


def bundle(root: Path, changes: dict[str, str | None] | None = None) -> bytes:
    """The same, packed."""
    return pack_folder(write_task(root, changes))


def make_task(digest: str = "sha256:aa", name: str = "acme/count", has_solution: bool = True) -> Task:
    """A task that needs no files."""
    content = TaskContent(
        digest=digest, name=name, instruction="Do it", environment_digest="sha256:e", tests_digest="sha256:t",
        limits=Limits(), metadata={"skill": "count"}, workdir="/app", agent_user="", verifier_user="",
        has_solution=has_solution, solution_env={},
    )  # fmt: skip
    return Task(content, imported_at_ms=5, source="here")


def oracle(*rewards: float, failures: tuple[str, ...] = (), image: str = "sha256:i") -> Evidence:
    """Evidence of an oracle probe."""
    return Evidence(EvidenceKind.ORACLE, rewards, failures, image, 1)


def nop(*rewards: float, failures: tuple[str, ...] = (), image: str = "sha256:i") -> Evidence:
    """Evidence of a nop probe."""
    return Evidence(EvidenceKind.NOP, rewards, failures, image, 1)


def reference(*rewards: float, token_exact: bool = True) -> Evidence:
    """Evidence of a reference group."""
    return Evidence(EvidenceKind.REFERENCE, rewards, (), "", 1, "run/r/group/g", token_exact)
