"""A release of the chart on the test cluster, shared by this folder's tests, which run in the order of the file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from release import Connected, Failed, Release, connected, logs_of

KEEP = bool(os.environ.get("LONGSHORE_KEEP_RELEASE"))
"""Leaves the release where it is, to look at it."""
_FAILED: list[str] = []


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Remembers what failed: the release's logs are printed before it goes."""
    if call.excinfo is not None and not call.excinfo.errisinstance(pytest.skip.Exception):
        _FAILED.append(item.nodeid)


@pytest.fixture(scope="session", autouse=True)
def cluster() -> None:
    """Skips where there is no cluster."""
    if not Path(os.environ.get("KUBECONFIG", "")).is_file():
        pytest.skip("no test cluster: run `make test-cluster-e2e`, or `make cluster-up` and the exports it names")


@pytest.fixture(scope="session")
def release(cluster: None) -> Iterator[Release]:
    """Installed with values-cpu.yaml; uninstalled at the end, also when the last test of that did not run."""
    release = Release("e2e", "longshore-e2e")
    try:
        release.install()
    except Failed as error:
        message = f"{error}\n{release.kubectl('get', 'pods', '-o', 'wide')}\n{logs_of(release)}"
        if not KEEP:
            release.remove()
        raise Failed(message) from error
    yield release
    if _FAILED:
        sys.stderr.write(logs_of(release, 60))
    if not KEEP:
        release.remove()


@pytest.fixture(scope="session")
def cli(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connected]:
    """The CLI connected to the release."""
    with connected(release, tmp_path_factory.mktemp("home")) as found:
        yield found
