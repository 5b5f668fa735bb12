"""Lint rules, digests, and the reading of bundles."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
import zstandard
from catalog_builders import FILES, bundle, write_task
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore_common.bundle import pack_folder
from longshore_common.digests import tree_digest
from longshore_task_catalog.domain.inspection import (
    Inspection,
    dockerfile_workdir,
    inspect_bundle,
    inspect_folder,
    is_content,
    resolve_env,
    task_digest,
)
from longshore_task_catalog.domain.model import Limits, Severity, TaskContent

DEFAULTS = Limits()


def inspected(root: Path, changes: dict[str, str | None] | None = None) -> Inspection:
    return inspect_bundle(bundle(root, changes), "folder", DEFAULTS)


def content(root: Path, changes: dict[str, str | None] | None = None) -> TaskContent:
    inspection = inspected(root, changes)
    assert inspection.content is not None, inspection.findings
    return inspection.content


def test_a_good_task_has_no_findings(tmp_path: Path) -> None:
    inspection = inspected(tmp_path)
    assert inspection.findings == ()
    task = inspection.content
    assert task is not None
    assert (task.name, task.workdir, task.has_solution) == ("acme/count", "/app", True)
    assert task.metadata == {"skill": "count"}
    assert task.digest == tree_digest(tmp_path, is_content)
    assert task.environment_digest == tree_digest(tmp_path / "environment")
    assert task.tests_digest == tree_digest(tmp_path / "tests")


ALLOWLIST = '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.example", "192.0.2.0/24"]\n'
NO_DOCKERFILE: dict[str, str | None] = {"environment/Dockerfile": None}


def test_image_and_network_of_task_toml_are_content(tmp_path: Path) -> None:
    task = content(tmp_path, {"task.toml": ALLOWLIST + 'docker_image = "registry.example/task@sha256:ab"\n'})
    assert task.docker_image == "registry.example/task@sha256:ab"
    assert (task.network_mode, task.allowed_hosts) == ("allowlist", ("a.example", "192.0.2.0/24"))


def test_a_task_that_says_nothing_asks_for_nothing(tmp_path: Path) -> None:
    task = content(tmp_path)
    assert (task.docker_image, task.network_mode, task.allowed_hosts) == ("", "", ())


ERRORS: list[tuple[str, dict[str, str | None], str, str]] = [
    ("no tests", {"tests/test.sh": None}, "tests-missing", "tests/test.sh"),
    ("no toml", {"task.toml": None}, "toml-missing", "task.toml"),
    ("broken toml", {"task.toml": "[task\n"}, "toml-broken", "task.toml:1"),
    ("no instruction", {"instruction.md": None}, "instruction-missing", "instruction.md"),
    ("empty instruction", {"instruction.md": " \n"}, "instruction-empty", "instruction.md"),
    ("only a canary", {"instruction.md": "<!-- canary 123 -->\n\n"}, "instruction-empty", "instruction.md"),
    ("CRLF tests", {"tests/test.sh": "#!/bin/sh\r\necho reward.txt\r\n"}, "crlf", "tests/test.sh:1"),
    ("CRLF solution", {"solution/solve.sh": "#!/bin/sh\ntrue\r\n"}, "crlf", "solution/solve.sh:2"),
    ("CRLF Dockerfile", {"environment/Dockerfile": "FROM longshore/base\r\n"}, "crlf", "environment/Dockerfile:1"),
    ("no image", {"environment/Dockerfile": None}, "environment-missing", "environment/Dockerfile"),
    ("steps", {"steps/one/instruction.md": "x"}, "unsupported", "steps"),
    ("verifier image", {"tests/Dockerfile": "FROM x\n"}, "unsupported", "tests/Dockerfile"),
    ("separate", {"task.toml": '[verifier]\nenvironment_mode = "separate"\n'}, "unsupported", "task.toml"),
    ("windows", {"task.toml": '[environment]\nos = "windows"\n'}, "unsupported", "task.toml"),
]


@pytest.mark.parametrize(("changes", "rule", "where"), [case[1:] for case in ERRORS], ids=[case[0] for case in ERRORS])
def test_errors(changes: dict[str, str | None], rule: str, where: str, tmp_path: Path) -> None:
    """CRLF: SWE-bench#652/#661, pier#18."""
    inspection = inspected(tmp_path, changes)
    assert inspection.content is None
    assert (rule, where) in [(finding.rule, finding.where) for finding in inspection.errors]


WARNINGS: list[tuple[str, dict[str, str | None], str]] = [
    ("no solution", {"solution/solve.sh": None}, "solution-missing"),
    ("no name", {"task.toml": "[metadata]\nskill = 'x'\n"}, "name-missing"),
    ("compose", {"environment/docker-compose.yaml": "services: {}\n"}, "compose-needs-pods"),
    ("compose alone", {"environment/docker-compose.yml": "x: 1\n", **NO_DOCKERFILE}, "compose-needs-pods"),
    ("allow_internet", {"task.toml": "[environment]\nallow_internet = true\n"}, "network-needs-pods"),
    ("public", {"task.toml": '[environment]\nnetwork_mode = "public"\n'}, "network-needs-pods"),
    ("allowlist", {"task.toml": ALLOWLIST}, "network-needs-pods"),
    ("no internet, old field", {"task.toml": "[environment]\nallow_internet = false\n"}, "deprecated-field"),
    ("public agent", {"task.toml": '[agent]\nnetwork_mode = "public"\n'}, "ignored-field"),
    ("memory string", {"task.toml": '[environment]\nmemory = "1G"\n'}, "deprecated-field"),
    ("tests fetch", {"tests/test.sh": "apt-get update\necho > reward.txt\n"}, "tests-need-network"),
    ("no reward", {"tests/test.sh": "exit 0\n"}, "reward-not-written"),
    ("host variable", {"task.toml": '[solution.env]\nA = "${HOME}"\n'}, "host-variable"),
    ("ignored", {"task.toml": '[environment.healthcheck]\ncommand = "true"\n'}, "ignored-field"),
]


@pytest.mark.parametrize(("changes", "rule"), [case[1:] for case in WARNINGS], ids=[case[0] for case in WARNINGS])
def test_warnings_do_not_stop_an_import(changes: dict[str, str | None], rule: str, tmp_path: Path) -> None:
    """tests-need-network: orca-agent#65, MagentaBenchmark#37."""
    inspection = inspected(tmp_path, changes)
    assert inspection.content is not None
    assert rule in {finding.rule for finding in inspection.findings}
    assert {finding.severity for finding in inspection.findings} == {Severity.WARNING}


def test_network_warnings_only_when_asked_for(tmp_path: Path) -> None:
    toml = FILES["task.toml"] + '\n[environment]\nnetwork_mode = "no-network"\n'
    assert inspected(tmp_path, {"task.toml": toml}).findings == ()


def tar_bundle(*members: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return zstandard.ZstdCompressor().compress(buffer.getvalue())


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    "bad",
    [
        member("../evil"),
        member("/etc/evil"),
        member("tests/link", tarfile.SYMTYPE, "../../../etc/passwd"),
        member("tests/link", tarfile.SYMTYPE, "/etc/passwd"),
        member("tests/hard", tarfile.LNKTYPE, "task.toml"),
        member("tests/device", tarfile.CHRTYPE),
    ],
    ids=lambda bad: f"{bad.name}->{bad.linkname}",
)
def test_bundles_that_leave_the_task_are_refused(bad: tarfile.TarInfo, tmp_path: Path) -> None:
    inspection = inspect_bundle(tar_bundle(bad), "x", DEFAULTS)
    assert [finding.rule for finding in inspection.errors] == ["bundle-unsafe"]
    assert bad.name in inspection.errors[0].message


def test_escaping_symlink_of_a_folder_is_an_error(tmp_path: Path) -> None:
    write_task(tmp_path / "task")
    (tmp_path / "task/tests/outside").symlink_to("../../secret")
    inspection = inspect_bundle(pack_folder(tmp_path / "task"), "x", DEFAULTS)
    assert [(finding.rule, finding.where) for finding in inspection.errors] == [("bundle-unsafe", "tests/outside")]


@pytest.mark.parametrize("data", [b"", b"not zstd", zstandard.ZstdCompressor().compress(b"not a tar" * 100)])
def test_garbage_is_an_error(data: bytes) -> None:
    assert inspect_bundle(data, "x", DEFAULTS).errors


def test_files_beside_the_content_do_not_count(tmp_path: Path) -> None:
    first = content(tmp_path / "a")
    second = content(tmp_path / "b", {"README.md": "other", "notes/x.txt": "y"})
    assert first.digest == second.digest


@pytest.mark.parametrize(
    "path", ["task.toml", "instruction.md", "environment/data.txt", "tests/test.sh", "solution/solve.sh"]
)
def test_every_part_of_the_content_counts(path: str, tmp_path: Path) -> None:
    changed = FILES[path] + "\n# more\n"
    assert content(tmp_path / "a").digest != content(tmp_path / "b", {path: changed}).digest


def test_the_executable_bit_counts(tmp_path: Path) -> None:
    write_task(tmp_path)
    before = task_digest(tmp_path)
    (tmp_path / "tests/test.sh").chmod(0o755)
    assert task_digest(tmp_path) != before


NAMES = st.sampled_from(["environment/a", "environment/b", "tests/x", "solution/y", "README.md", "other/z"])
FILE_SETS = st.dictionaries(NAMES, st.text("ab\n", max_size=4), max_size=6)


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(NAMES, st.text("ab\n", max_size=4), max_size=6),
    st.dictionaries(NAMES, st.text("ab\n", max_size=4), max_size=6),
)
def test_digests_are_equal_exactly_when_the_content_is(
    tmp_path_factory: pytest.TempPathFactory, left: dict[str, str], right: dict[str, str]
) -> None:
    roots = [write_task(tmp_path_factory.mktemp("t"), dict(extra)) for extra in (left, right)]
    relevant = [{name: text for name, text in extra.items() if is_content(name)} for extra in (left, right)]
    assert (task_digest(roots[0]) == task_digest(roots[1])) == (relevant[0] == relevant[1])


@settings(max_examples=20, deadline=None)
@given(st.dictionaries(NAMES, st.text(max_size=8), max_size=4))
def test_packing_and_unpacking_keeps_the_digest(
    tmp_path_factory: pytest.TempPathFactory, extra: dict[str, str]
) -> None:
    root = write_task(
        tmp_path_factory.mktemp("t"), {name: text for name, text in extra.items() if "\ud800" not in text}
    )
    inspection = inspect_bundle(pack_folder(root), "x", DEFAULTS)
    direct = inspect_folder(root, "x", DEFAULTS)
    assert inspection == direct
    assert inspection.content is not None
    assert inspection.content.digest == task_digest(root)


@pytest.mark.parametrize(
    ("text", "workdir"),
    [
        ("FROM a\n", "/"),
        ("FROM a\nWORKDIR /app\n", "/app"),
        ("FROM a\nWORKDIR /app\nWORKDIR sub/../x\n", "/app/x"),
        ("FROM a AS b\nWORKDIR /one\nFROM c\nRUN x\n", "/"),
        ('from a\nworkdir "/my app"\n', "/my app"),
    ],
)
def test_workdir_of_a_dockerfile(text: str, workdir: str, tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text(text)
    assert dockerfile_workdir(path) == workdir


def test_task_toml_names_the_workdir_first(tmp_path: Path) -> None:
    toml = FILES["task.toml"] + '\n[environment]\nworkdir = "/work"\n'
    assert content(tmp_path, {"task.toml": toml}).workdir == "/work"


def test_canary_lines_are_stripped(tmp_path: Path) -> None:
    text = "<!-- my-bench canary GUID 1 -->\n# canary 2\n\nDo it\n# canary stays here\n"
    assert content(tmp_path, {"instruction.md": text}).instruction == "Do it\n# canary stays here\n"


def test_host_variables_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    assert resolve_env({"A": "x${SECRET}y", "B": "${SECRET:-d}", "C": "$SECRET"}) == {
        "A": "xy",
        "B": "d",
        "C": "$SECRET",
    }
