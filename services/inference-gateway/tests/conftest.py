"""Fixtures: a tiny model folder, adapters, a gateway in front of fake engines."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from gateway_fakes import FakeEngine, FakeTrajectory
from gateway_harness import Gateway, running_gateway, serving_trajectory, settings
from gateway_tiny_model import make_adapter_files, make_tokenizer_folder


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokenizer and config without tensors: what the gateway itself reads. No torch needed."""
    return make_tokenizer_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Adapter folders for versions 1, 2, 3: config and a safetensors header."""
    root = tmp_path_factory.mktemp("adapters")
    return [make_adapter_files(root / f"v{number}", marker=number) for number in (1, 2, 3)]


@pytest.fixture
async def trajectory() -> FakeTrajectory:
    return FakeTrajectory()


@pytest.fixture
async def trajectory_address(trajectory: FakeTrajectory) -> AsyncIterator[str]:
    async with serving_trajectory(trajectory) as address:
        yield address


@pytest.fixture
async def engines() -> AsyncIterator[list[FakeEngine]]:
    """Two fake engines that serve demo-v0."""
    started = [await FakeEngine("demo-v0").start() for _ in range(2)]
    yield started
    for engine in started:
        await engine.stop()


@pytest.fixture
async def gateway(tmp_path: Path, trajectory_address: str, engines: list[FakeEngine]) -> AsyncIterator[Gateway]:
    """A gateway over the first fake engine."""
    config = settings(
        tmp_path, trajectory_address, engine_mode="external", engine_addresses=(engines[0].address,), append_attempts=2
    )
    async with running_gateway(config) as running:
        yield running
