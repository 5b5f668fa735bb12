"""Fixtures of the tests of the test cluster itself. Tests of services on it have their own in their folders."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from kubectl import Kubectl, Refused, fresh_namespace


@pytest.fixture(scope="session")
def kubeconfig() -> str:
    """Of the cluster that `make cluster-up` started; skips where there is none."""
    path = os.environ.get("KUBECONFIG", "")
    if not Path(path).is_file():
        pytest.skip("no test cluster: run `make test-cluster`, or `make cluster-up` and the exports it names")
    try:
        Kubectl(path)("get", "--raw", "/readyz")
    except (Refused, FileNotFoundError) as error:
        pytest.skip(f"the test cluster does not answer: {error}")
    return path


@pytest.fixture(scope="module")
def kubectl(kubeconfig: str) -> Iterator[Kubectl]:
    """In a sandbox namespace of the module's own."""
    with fresh_namespace(kubeconfig) as inside:
        yield inside
