"""What every EngineLauncher promises, tried on all three; vLLM is the fake program everywhere."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from engine_host_harness import FAKE_VLLM, kill_engine, running_host
from gateway_fakes import FakeEngine
from gateway_harness import SECRET
from gateway_tiny_model import make_adapter_files

from longshore_common.clock import SystemClock
from longshore_common.digests import tree_digest
from longshore_common.errors import Internal, LongshoreError
from longshore_inference_gateway.clients.external_engine import ExternalEngines, Watch
from longshore_inference_gateway.clients.hosted_engine import HostedEngines
from longshore_inference_gateway.clients.local_engine import LocalEngines
from longshore_inference_gateway.clients.vllm_process import Placement, VllmProcesses
from longshore_inference_gateway.domain.models import ServedBase
from longshore_inference_gateway.domain.ports import EngineHandle, EngineLauncher
from longshore_inference_gateway.engine_settings import EngineSettings

SETTINGS = EngineSettings(engine_max_cpu_loras=3, engine_max_lora_rank=8, engine_start_timeout_s=20)
WATCH = Watch(interval_s=0.05, dead_after_s=0.5)


@dataclass
class Kind:
    """A launcher, how its engine dies, and whether an engine outlives the gateway's handle."""

    launcher: EngineLauncher
    kill: Callable[[EngineHandle], Awaitable[None]]
    survives_release: bool


@contextlib.asynccontextmanager
async def _local(tmp_path: Path) -> AsyncIterator[Kind]:
    place = Placement(tmp_path / "work", tmp_path / "logs", "key", FAKE_VLLM)
    launcher = LocalEngines(SETTINGS, VllmProcesses(SETTINGS, place, SystemClock()))
    yield Kind(launcher, _kill_process, survives_release=False)
    await launcher.close()


@contextlib.asynccontextmanager
async def _hosted(tmp_path: Path) -> AsyncIterator[Kind]:
    async with running_host(tmp_path / "host") as host:
        launcher = HostedEngines((host.address,), SECRET, SETTINGS, SystemClock(), WATCH)
        yield Kind(launcher, _kill_process, survives_release=True)
        await launcher.close()


@contextlib.asynccontextmanager
async def _external(tmp_path: Path) -> AsyncIterator[Kind]:
    engine = await FakeEngine("demo-v0").start()

    async def kill(handle: EngineHandle) -> None:
        await engine.stop()

    yield Kind(ExternalEngines((engine.address,), SETTINGS, SystemClock(), WATCH), kill, survives_release=True)
    await engine.stop()


async def _kill_process(handle: EngineHandle) -> None:
    kill_engine(handle.pid)


@pytest.fixture(params=[_local, _hosted, _external], ids=["local", "hosted", "external"])
async def kind(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Kind]:
    async with request.param(tmp_path) as kind:
        yield kind


@pytest.fixture
def base(model_dir: Path) -> ServedBase:
    return ServedBase("demo-v0", str(model_dir), tree_digest(model_dir))


async def test_a_launched_engine_is_ready_and_serves_the_base(kind: Kind, base: ServedBase) -> None:
    engine = await kind.launcher.launch(0, base)
    names, length = await engine.client.served_names()
    assert names == ["demo-v0"]
    assert length == engine.context_length > 0
    assert engine.engine_id
    assert await engine.client.healthy()
    await engine.stop()
    await kind.launcher.free(base)


async def test_limits_are_known(kind: Kind) -> None:
    assert (kind.launcher.size, kind.launcher.max_adapters, kind.launcher.max_rank) == (1, 3, 8)


async def test_the_death_of_an_engine_is_noticed_and_a_new_launch_works_where_there_can_be_one(
    kind: Kind, base: ServedBase
) -> None:
    engine = await kind.launcher.launch(0, base)
    watching = asyncio.create_task(engine.wait_failed())
    await asyncio.sleep(0.2)
    assert not watching.done()
    await kind.kill(engine)
    async with asyncio.timeout(10):
        assert await watching
    await engine.stop()
    if engine.pid:
        again = await kind.launcher.launch(0, base)
        assert again.pid != engine.pid
        await again.stop()
    else:
        with pytest.raises(LongshoreError):
            await kind.launcher.launch(0, base)


async def test_release_ends_only_what_cannot_live_without_the_gateway(
    kind: Kind, base: ServedBase, tmp_path: Path
) -> None:
    engine = await kind.launcher.launch(0, base)
    await engine.client.load_adapter("demo-v1", str(make_adapter_files(tmp_path / "v1", marker=1)))
    await engine.release()
    again = await kind.launcher.launch(0, base)
    names, _ = await again.client.served_names()
    assert ("demo-v1" in names) == kind.survives_release
    if kind.survives_release:
        assert again.pid == engine.pid
    await again.stop()


async def test_an_adapter_that_the_engine_does_not_see_is_said_so(kind: Kind, base: ServedBase, tmp_path: Path) -> None:
    engine = await kind.launcher.launch(0, base)
    with pytest.raises(Internal, match=r"does not see .*absent.* must mount the same volume"):
        await engine.client.load_adapter("demo-v1", str(tmp_path / "absent"))
    await engine.stop()


async def test_freeing_a_base_that_nobody_launched_is_a_no_op(kind: Kind, base: ServedBase) -> None:
    await kind.launcher.free(base)
    engine = await kind.launcher.launch(0, base)
    await kind.launcher.free(ServedBase("other-v0", "/x", "d"))
    assert await engine.client.healthy()
    await engine.stop()
