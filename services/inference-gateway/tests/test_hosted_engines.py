"""A gateway in hosted mode over engine hosts: publish, restart, loss, one run after another."""

import asyncio
import contextlib
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from engine_host_harness import Host, kill_engine, running_host
from gateway_fakes import FakeTrajectory
from gateway_harness import SECRET, Gateway, running_gateway, settings
from gateway_tiny_model import make_adapter_files

from longshore.engine.v1 import engine_pb2
from longshore.gateway.v1 import gateway_pb2 as pb
from longshore_common.digests import tree_digest
from longshore_common.errors import Internal, InvalidSpec, PermissionDenied, QuotaExceeded, Unavailable
from longshore_inference_gateway.bootstrap import address_of, build
from longshore_inference_gateway.clients.vllm import VllmClient, api_key_of
from longshore_inference_gateway.engine_host import volume

MESSAGES = [{"role": "user", "content": "hi"}]
READY, IDLE = engine_pb2.ENGINE_STATE_READY, engine_pb2.ENGINE_STATE_IDLE


@pytest.fixture
async def hosts(tmp_path: Path) -> AsyncIterator[list[Host]]:
    async with running_host(tmp_path / "host0") as first, running_host(tmp_path / "host1") as second:
        yield [first, second]


class World:
    """Makes gateways with one database over the hosts."""

    def __init__(self, root: Path, trajectory: str, hosts: list[Host]) -> None:
        self.hosts, self._root, self._trajectory = hosts, root, trajectory

    def gateway(self, **fields: Any) -> contextlib.AbstractAsyncContextManager[Gateway]:
        fields = {"engine_addresses": tuple(host.address for host in self.hosts)} | fields
        config = settings(
            self._root / "gateway",
            self._trajectory,
            engine_mode="hosted",
            engine_probe_s=0.1,
            engine_dead_after_s=1.0,
            **fields,
        )
        return running_gateway(config)

    async def states(self) -> list[int]:
        return [(await host.status()).state for host in self.hosts]

    async def instances(self) -> list[str]:
        return [(await host.status()).instance for host in self.hosts]

    async def names(self) -> list[set[str]]:
        return [await _names(host) for host in self.hosts]


@pytest.fixture
def world(tmp_path: Path, trajectory_address: str, hosts: list[Host]) -> World:
    return World(tmp_path, trajectory_address, hosts)


@contextlib.asynccontextmanager
async def _client(host: Host) -> AsyncIterator[VllmClient]:
    address = f"127.0.0.1:{(await host.status()).http_port}"
    client = VllmClient(address, connect_timeout_s=5, call_timeout_s=5, admin_timeout_s=5, api_key=api_key_of(SECRET))
    yield client
    await client.close()


async def _names(host: Host) -> set[str]:
    async with _client(host) as client:
        return set((await client.served_names())[0])


async def _retire(gateway: Gateway, alias: str = "demo") -> None:
    await gateway.stub.RetireAlias(pb.RetireAliasRequest(alias=alias), timeout=60)


async def _engine_states(gateway: Gateway) -> list[str]:
    return [engine.state for engine in (await gateway.stub.ListEngines(pb.ListEnginesRequest())).engines]


async def _until_states(gateway: Gateway, states: list[str]) -> None:
    async with asyncio.timeout(20):
        while await _engine_states(gateway) != states:
            await asyncio.sleep(0.02)


async def _until_ready(gateway: Gateway, count: int = 2) -> None:
    await _until_states(gateway, ["ready"] * count)


def _free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


async def test_all_hosts_serve_a_published_base_and_its_adapters(
    world: World, model_dir: Path, adapters: list[Path]
) -> None:
    async with world.gateway() as gateway:
        assert (await gateway.publish(model_dir, 0)).engines_confirmed == 2
        assert (await gateway.publish(adapters[0], 1)).engines_confirmed == 2
        assert await world.names() == [{"demo-v0", "demo-v1"}] * 2
        session = await gateway.open()
        assert (session.start_version, session.context_length) == (1, 77)
        status, answer = await gateway.chat(session.token, [{"role": "user", "content": "hi"}])
        assert status == 200, answer


async def test_engines_survive_a_restart_of_the_gateway_which_takes_them_over(
    world: World, model_dir: Path, adapters: list[Path]
) -> None:
    async with world.gateway() as gateway:
        await gateway.publish(model_dir, 0)
        await gateway.publish(adapters[0], 1)
        before = await world.instances()
    assert await world.states() == [READY, READY]
    # What a gateway that died while publishing may have left behind.
    stray = make_adapter_files(world.hosts[0].data_dir / "v9", marker=9)
    async with _client(world.hosts[0]) as client:
        await client.load_adapter("demo-v9", str(stray))
        await client.unload_adapter("demo-v1")
    async with world.gateway() as gateway:
        await _until_ready(gateway)
        assert await world.instances() == before
        assert await world.names() == [{"demo-v0", "demo-v1"}] * 2, "missing ones loaded, stray ones unloaded"
        assert (await gateway.publish(adapters[1], 2)).engines_confirmed == 2
    assert [host.started() for host in world.hosts] == [["demo-v0"]] * 2


async def test_a_restart_beside_a_lost_host_keeps_the_other_engine(
    tmp_path: Path, trajectory_address: str, model_dir: Path
) -> None:
    async with running_host(tmp_path / "kept") as kept:
        address = _free_address()
        world = World(tmp_path, trajectory_address, [kept])
        addresses = {"engine_addresses": (kept.address, address), "engine_start_timeout_s": 0.2}
        async with (
            running_host(tmp_path / "lost", grpc_address=address),
            world.gateway(**addresses | {"engine_start_timeout_s": 20.0}) as gateway,
        ):
            await gateway.publish(model_dir, 0)
        before = await world.instances()
        async with world.gateway(**addresses) as gateway:
            await asyncio.sleep(2)
            assert (await kept.status()).state == READY
            async with running_host(tmp_path / "back", grpc_address=address):
                await _until_ready(gateway)
        assert await world.instances() == before


async def test_a_killed_engine_comes_back_with_its_adapters(
    world: World, model_dir: Path, adapters: list[Path]
) -> None:
    async with world.gateway() as gateway:
        await gateway.publish(model_dir, 0)
        await gateway.publish(adapters[0], 1)
        before = await world.instances()
        kill_engine((await world.hosts[1].status()).pid)
        async with asyncio.timeout(20):
            while (await world.instances())[1] == before[1]:
                await asyncio.sleep(0.05)
        await _until_ready(gateway)
        after = await world.instances()
        assert (after[0], after[1] != before[1]) == (before[0], True)
        assert await world.names() == [{"demo-v0", "demo-v1"}] * 2


async def test_calls_of_a_lost_host_fail_typed_and_are_answered_elsewhere_until_it_is_caught_up(
    tmp_path: Path,
    trajectory_address: str,
    trajectory: FakeTrajectory,
    model_dir: Path,
    adapters: list[Path],
) -> None:
    address = _free_address()
    async with contextlib.AsyncExitStack() as stack:
        kept = await stack.enter_async_context(running_host(tmp_path / "kept"))
        dying = contextlib.AsyncExitStack()
        await dying.enter_async_context(running_host(tmp_path / "dying", grpc_address=address))
        world = World(tmp_path, trajectory_address, [kept])
        gateway = await stack.enter_async_context(
            world.gateway(engine_addresses=(address, kept.address), engine_start_timeout_s=20.0)
        )
        await gateway.publish(model_dir, 0)
        session = await gateway.open()
        assert (await gateway.chat(session.token, MESSAGES))[0] == 200
        await dying.aclose()

        status, answer = await gateway.chat(session.token, MESSAGES)
        assert (status, answer["error"]["code"]) == (503, "engine_unavailable")
        status, _ = await gateway.chat(session.token, MESSAGES)
        assert status == 200, "the repetition meets the other engine at once, not only when the loss is certain"
        first, lost, second = trajectory.of("a-0")
        assert (first.engine, lost.engine, second.engine) == ("engine-1", "engine-1", "engine-2")
        assert (lost.trainable, second.trainable) == (False, True)

        await _until_states(gateway, ["starting", "ready"])
        assert (await gateway.publish(adapters[0], 1)).engines_confirmed == 1, "who does not serve is not waited for"
        back = await stack.enter_async_context(running_host(tmp_path / "back", grpc_address=address))
        await _until_ready(gateway)
        assert await _names(back) == {"demo-v0", "demo-v1"}
        assert (await gateway.publish(adapters[1], 2)).engines_confirmed == 2


async def test_an_update_that_half_of_the_engines_got_is_served_by_none(
    world: World, model_dir: Path, adapters: list[Path]
) -> None:
    async with world.gateway() as gateway:
        await gateway.publish(model_dir, 0)
        (world.hosts[1].data_dir / "refuse-adapters").touch()
        with pytest.raises(Internal, match="cannot load adapter demo-v1"):
            await gateway.publish(adapters[0], 1)
        assert await world.names() == [{"demo-v0"}] * 2
        assert (await gateway.open()).start_version == 0
        kill_engine((await world.hosts[1].status()).pid)
        await _until_states(gateway, ["ready", "starting"])
        await _until_ready(gateway)
        assert await world.names() == [{"demo-v0"}] * 2, "nor by one that restarts"
        (world.hosts[1].data_dir / "refuse-adapters").unlink()
        assert (await gateway.publish(adapters[0], 1)).engines_confirmed == 2


async def test_an_engine_that_cannot_take_the_versions_of_its_run_does_not_serve(
    world: World, model_dir: Path, adapters: list[Path]
) -> None:
    async with world.gateway() as gateway:
        await gateway.publish(model_dir, 0)
        await gateway.publish(adapters[0], 1)
        (world.hosts[1].data_dir / "refuse-adapters").touch()
        kill_engine((await world.hosts[1].status()).pid)
        await _until_states(gateway, ["ready", "starting"])
        await world.hosts[1].settled()
        await asyncio.sleep(1)
        assert await _engine_states(gateway) == ["ready", "starting"]
        (world.hosts[1].data_dir / "refuse-adapters").unlink()
        await _until_ready(gateway)
        assert await world.names() == [{"demo-v0", "demo-v1"}] * 2


async def test_a_retired_run_frees_the_hosts_and_the_next_base_takes_them(world: World, model_dir: Path) -> None:
    async with world.gateway() as gateway:
        await gateway.publish(model_dir, 0)
        with pytest.raises(QuotaExceeded, match=r"serve demo-v0.*retired"):
            await gateway.publish(model_dir, 0, alias="next")
        assert await world.states() == [READY, READY]
        await _retire(gateway)
        assert await world.states() == [IDLE, IDLE]
        assert (await gateway.publish(model_dir, 0, alias="next")).engines_confirmed == 2
        assert await world.names() == [{"next-v0"}] * 2
    assert [host.started() for host in world.hosts] == [["demo-v0", "next-v0"]] * 2


async def test_an_engine_left_by_a_lost_gateway_is_replaced(world: World, model_dir: Path) -> None:
    await world.hosts[0].serve(model_dir, "forgotten-v0")
    await world.hosts[0].settled()
    async with world.gateway() as gateway:
        await gateway.publish(model_dir, 0)
        assert await world.names() == [{"demo-v0"}] * 2


async def test_a_base_that_one_host_does_not_find_is_served_by_none(
    world: World, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its volume lacks the folder: here, an engine host that sees another root."""
    seen: list[str] = []
    original = volume.tree_digest

    def other_content_once(folder: Path) -> str:
        seen.append(str(folder))
        return "sha256:other" if len(seen) == 1 else original(folder)

    monkeypatch.setattr(volume, "tree_digest", other_content_once)
    async with world.gateway() as gateway:
        with pytest.raises(InvalidSpec, match=r"has digest sha256:other on the engine host, not sha256"):
            await gateway.publish(model_dir, 0)
        assert await world.states() == [IDLE, IDLE]
        assert await _engine_states(gateway) == []
        assert (await gateway.publish(model_dir, 0)).engines_confirmed == 2


async def test_an_engine_that_does_not_start_fails_the_publish_with_its_log(
    world: World, model_dir: Path, tmp_path: Path
) -> None:
    failing = shutil.copytree(model_dir, tmp_path / "failing")
    (failing / "fail").touch()
    async with world.gateway() as gateway:
        with pytest.raises(Internal, match="KV cache does not fit"):
            await gateway.publish(failing, 0)
        assert await world.states() == [IDLE, IDLE]


async def test_the_wrong_secret_is_refused(tmp_path: Path, trajectory_address: str, model_dir: Path) -> None:
    async with (
        running_host(tmp_path / "host", secret="another") as host,
        World(tmp_path, trajectory_address, [host]).gateway() as gateway,
    ):
        with pytest.raises(PermissionDenied, match="engine-host: wrong or missing service secret"):
            await gateway.publish(model_dir, 0)


async def test_a_host_that_is_not_there_yet_is_waited_for(
    tmp_path: Path, trajectory_address: str, model_dir: Path
) -> None:
    address = _free_address()
    world = World(tmp_path, trajectory_address, [])
    async with world.gateway(engine_addresses=(address,), engine_start_timeout_s=0.5) as gateway:
        with pytest.raises(Unavailable, match=f"engine host {address} does not answer"):
            await gateway.publish(model_dir, 0)
    async with world.gateway(engine_addresses=(address,), engine_start_timeout_s=30) as gateway:
        publishing = asyncio.create_task(gateway.publish(model_dir, 0))
        await asyncio.sleep(1)
        assert not publishing.done()
        async with running_host(tmp_path / "host", grpc_address=address):
            assert (await publishing).engines_confirmed == 1


async def test_the_smaller_limit_of_gateway_and_host_counts(
    tmp_path: Path, trajectory_address: str, model_dir: Path
) -> None:
    big = make_adapter_files(tmp_path / "big", marker=1, rank=16)
    async with (
        running_host(tmp_path / "host", engine_max_lora_rank=8) as host,
        World(tmp_path, trajectory_address, [host]).gateway(engine_max_lora_rank=64) as gateway,
    ):
        await gateway.publish(model_dir, 0)
        with pytest.raises(InvalidSpec, match="rank"):
            await gateway.publish(big, 1)


async def test_a_publish_whose_caller_gave_up_goes_on_and_can_be_retired(world: World, model_dir: Path) -> None:
    async with world.gateway() as gateway:
        request = pb.PublishPolicyRequest(
            run_id="run-1",
            alias="demo",
            incarnation=1,
            kind=pb.POLICY_KIND_FULL,
            uri=str(model_dir),
            digest=tree_digest(model_dir),
        )
        call = gateway.stub.PublishPolicy(request, timeout=60)
        while await world.states() == [IDLE, IDLE]:
            await asyncio.sleep(0.001)
        call.cancel()
        await _retire(gateway)
        assert await world.states() == [IDLE, IDLE]
        assert (await gateway.publish(model_dir, 0, alias="next")).engines_confirmed == 2


async def test_hosted_mode_needs_addresses(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="engine_addresses"):
        await build(settings(tmp_path, "127.0.0.1:1", engine_mode="hosted"))


async def test_a_name_is_advertised_as_its_address(world: World, model_dir: Path) -> None:
    async with world.gateway(advertised_url="http://localhost:7403/", advertise_ip=True) as gateway:
        await gateway.publish(model_dir, 0)
        assert (await gateway.open()).base_url in ("http://127.0.0.1:7403/v1", "http://[::1]:7403/v1")


async def test_a_name_that_gets_its_address_in_a_moment_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, asked = asyncio.get_running_loop(), []
    look_up = loop.getaddrinfo

    async def late(host: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(host)
        if len(asked) == 1:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return await look_up("127.0.0.7", *args, **kwargs)

    monkeypatch.setattr(loop, "getaddrinfo", late)
    assert await address_of("ls-longshore-inference-gateway", 5) == "127.0.0.7"
    assert len(asked) == 2


async def test_a_name_without_an_address_is_one_clear_error(tmp_path: Path) -> None:
    config = settings(
        tmp_path,
        "127.0.0.1:1",
        advertised_url="http://no-such-host.invalid:7403",
        advertise_ip=True,
        advertise_patience_s=0.0,
    )
    with pytest.raises(InvalidSpec, match=r"no-such-host\.invalid.*no address") as caught:
        await build(config)
    assert caught.value.field == "advertised_url"


def test_no_engine_is_left(tmp_path: Path) -> None:
    """Hosts of earlier tests ended with everything below them."""
    left = [p for p in psutil.process_iter(["cmdline"]) if "fake_vllm.py" in " ".join(p.info["cmdline"] or [])]
    assert left == []
