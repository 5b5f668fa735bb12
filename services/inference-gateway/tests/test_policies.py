"""PublishPolicy: all engines or none, versions that only grow, and what a restart leaves."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from gateway_fakes import FakeEngine, FakeTrajectory
from gateway_harness import Gateway, running_gateway, settings
from gateway_tiny_model import make_adapter_files

from longshore.gateway.v1 import gateway_pb2 as pb
from longshore_common.database import Database
from longshore_common.errors import Conflict, Internal, InvalidSpec, LongshoreError, NotFound, Unavailable
from longshore_inference_gateway.store.tables import policies as policies_table

MESSAGES = [{"role": "user", "content": "hi"}]


@contextlib.asynccontextmanager
async def _gateway(
    data_dir: Path, trajectory_address: str, engines: list[FakeEngine], **fields: object
) -> AsyncIterator[Gateway]:
    addresses = tuple(engine.address for engine in engines)
    config = settings(data_dir, trajectory_address, engine_mode="external", engine_addresses=addresses, **fields)
    async with running_gateway(config) as gateway:
        yield gateway


@pytest.fixture
async def pair(
    tmp_path: Path, trajectory_address: str, engines: list[FakeEngine], model_dir: Path
) -> AsyncIterator[Gateway]:
    """A gateway over both fake engines, version 0 published."""
    async with _gateway(tmp_path, trajectory_address, engines) as gateway:
        await gateway.publish(model_dir, 0)
        yield gateway


async def _current(gateway: Gateway) -> int:
    return (await gateway.stub.GetPolicy(pb.GetPolicyRequest(alias="demo"))).policy.version


async def _states(gateway: Gateway) -> dict[int, int]:
    listed = (await gateway.stub.ListPolicies(pb.ListPoliciesRequest(alias="demo"))).policies
    return {policy.version: policy.state for policy in listed}


async def test_all_engines_confirm_before_the_alias_moves(
    pair: Gateway, engines: list[FakeEngine], adapters: list[Path]
) -> None:
    published = await pair.publish(adapters[0], 1)
    assert (published.engines_confirmed, published.policy.served_name, published.policy.current) == (2, "demo-v1", True)
    assert all(engine.loaded == {"demo-v1"} for engine in engines)
    again = await pair.publish(adapters[0], 1)
    assert again.policy == published.policy
    assert [engine.loads for engine in engines] == [["demo-v1"], ["demo-v1"]], "repeating it is a no-op"


async def test_dynamo_9131_one_engine_fails_and_no_engine_serves_the_version(
    pair: Gateway, engines: list[FakeEngine], adapters: list[Path]
) -> None:
    """dynamo #9131: one of two workers failed the update, and both went on serving under one name."""
    engines[1].fail_load = True
    with pytest.raises(Internal, match="no room for the adapter"):
        await pair.publish(adapters[0], 1)
    assert engines[0].loads == ["demo-v1"]
    assert all(not engine.loaded for engine in engines)
    assert await _current(pair) == 0
    assert (await pair.open("a-0")).start_version == 0
    assert (await _states(pair))[1] == pb.POLICY_STATE_FAILED
    engines[1].fail_load = False
    assert (await pair.publish(adapters[0], 1)).engines_confirmed == 2, "the next try works"
    assert await _current(pair) == 1


async def test_versions_only_grow_and_never_change(pair: Gateway, adapters: list[Path]) -> None:
    await pair.publish(adapters[1], 2)
    with pytest.raises(Conflict, match="only grow"):
        await pair.publish(adapters[0], 1)
    with pytest.raises(Conflict, match="never changes"):
        await pair.publish(adapters[0], 2)
    assert await _current(pair) == 2


async def test_an_older_incarnation_is_refused(pair: Gateway, adapters: list[Path]) -> None:
    await pair.publish(adapters[0], 1, incarnation=3)
    with pytest.raises(Conflict, match="incarnation 2"):
        await pair.publish(adapters[1], 2, incarnation=2)
    await pair.publish(adapters[1], 2, incarnation=3)


@pytest.mark.parametrize("change", [{"use_dora": True}, {"modules_to_save": ["lm_head"]}, {"rank": 64}])
async def test_adapters_that_lora_cannot_serve_are_refused(
    pair: Gateway, tmp_path: Path, change: dict[str, object]
) -> None:
    folder = make_adapter_files(tmp_path / "bad", marker=9, **change)  # type: ignore[arg-type]
    with pytest.raises(InvalidSpec, match="merge it"):
        await pair.publish(folder, 1)
    assert set(await _states(pair)) == {0}, "nothing is recorded"


async def test_weights_must_match_their_digest(pair: Gateway, adapters: list[Path]) -> None:
    with pytest.raises(InvalidSpec, match="has digest"):
        await pair.publish(adapters[0], 1, digest="sha256:" + "0" * 64)


async def test_version_0_comes_first(gateway: Gateway, adapters: list[Path], model_dir: Path) -> None:
    with pytest.raises(NotFound, match="version 0"):
        await gateway.publish(adapters[0], 1)
    with pytest.raises(NotFound):
        await gateway.open()


async def test_a_session_keeps_its_version_and_old_ones_unload_after_the_last(
    pair: Gateway, engines: list[FakeEngine], adapters: list[Path], trajectory: FakeTrajectory
) -> None:
    await pair.publish(adapters[0], 1)
    session = await pair.open("old")
    await pair.publish(adapters[1], 2)
    await pair.chat(session.token, MESSAGES)
    (turn,) = trajectory.of("old")
    assert (turn.served_name, turn.versions[0].version) == ("demo-v1", 1)
    assert engines[0].loaded == {"demo-v1", "demo-v2"}
    assert (await pair.open("pinned", pinned_version=1)).start_version == 1
    await pair.stub.RetireAlias(pb.RetireAliasRequest(alias="demo"))
    assert engines[0].loaded == set()


async def test_unused_versions_unload_when_their_last_session_closes(
    pair: Gateway, engines: list[FakeEngine], adapters: list[Path]
) -> None:
    await pair.publish(adapters[0], 1)
    session = await pair.open("old")
    await pair.publish(adapters[1], 2)
    await pair.close(session.session_id)
    for _ in range(60):
        if engines[0].loaded == {"demo-v2"}:
            break
        await asyncio.sleep(0.05)
    assert engines[0].loaded == engines[1].loaded == {"demo-v2"}
    assert (await _states(pair))[1] == pb.POLICY_STATE_UNLOADED
    with pytest.raises(Conflict, match="unloaded"):
        await pair.open("late", pinned_version=1)


async def test_live_versions_are_bounded(
    tmp_path: Path, trajectory_address: str, engines: list[FakeEngine], model_dir: Path, adapters: list[Path]
) -> None:
    async with _gateway(tmp_path, trajectory_address, engines, engine_max_cpu_loras=2) as gateway:
        await gateway.publish(model_dir, 0)
        await gateway.publish(adapters[0], 1)
        session = await gateway.open("holds-1")
        await gateway.publish(adapters[1], 2)
        with pytest.raises(Unavailable, match="close sessions"):
            await gateway.publish(adapters[2], 3)
        assert set(await _states(gateway)) == {0, 1, 2}
        await gateway.close(session.session_id)
        await gateway.publish(adapters[2], 3)
        assert engines[0].loaded == {"demo-v3"}


async def test_a_restart_keeps_sessions_versions_and_lineage(
    tmp_path: Path,
    trajectory_address: str,
    trajectory: FakeTrajectory,
    engines: list[FakeEngine],
    model_dir: Path,
    adapters: list[Path],
) -> None:
    async with _gateway(tmp_path, trajectory_address, engines) as gateway:
        await gateway.publish(model_dir, 0)
        await gateway.publish(adapters[0], 1)
        session = await gateway.open()
        _, answer = await gateway.chat(session.token, MESSAGES)
        await gateway.publish(adapters[1], 2)
    for engine in engines:
        engine.loaded.clear()
    async with _gateway(tmp_path, trajectory_address, engines) as gateway:
        follow_up = [*MESSAGES, answer["choices"][0]["message"], {"role": "user", "content": "go on"}]
        for _ in range(100):
            status, second = await gateway.chat(session.token, follow_up)
            if status == 200:
                break
            await asyncio.sleep(0.05)
        assert status == 200, second
        first, *_, last = trajectory.of("a-0")
        joined = [*first.prompt_ids, *first.completion_ids]
        assert (last.parent_turn, last.served_name) == (0, "demo-v1")
        assert list(last.prompt_ids)[: len(joined)] == joined
        assert engines[1].loaded == {"demo-v1", "demo-v2"}
        assert await _current(gateway) == 2
        totals = await gateway.close(session.session_id)
        assert totals.completion_tokens == 6


@pytest.mark.parametrize("loads", [True, False])
async def test_a_restart_finishes_or_undoes_a_publish(
    tmp_path: Path,
    trajectory_address: str,
    engines: list[FakeEngine],
    model_dir: Path,
    adapters: list[Path],
    loads: bool,
) -> None:
    async with _gateway(tmp_path, trajectory_address, engines) as gateway:
        await gateway.publish(model_dir, 0)
        engines[1].fail_load = True
        with pytest.raises(LongshoreError):
            await gateway.publish(adapters[0], 1)
    await _set_publishing(tmp_path)
    engines[1].fail_load = not loads
    async with _gateway(tmp_path, trajectory_address, engines) as gateway:
        wanted = pb.POLICY_STATE_SERVING if loads else pb.POLICY_STATE_FAILED
        for _ in range(100):
            if (await _states(gateway))[1] == wanted:
                break
            await asyncio.sleep(0.05)
        assert (await _states(gateway))[1] == wanted
        assert await _current(gateway) == (1 if loads else 0)
        assert engines[0].loaded == ({"demo-v1"} if loads else set())


async def _set_publishing(data_dir: Path) -> None:
    """What a gateway that was killed between the two commits leaves."""
    database = Database(f"sqlite+aiosqlite:///{data_dir}/inference-gateway.sqlite")
    async with database.begin() as connection:
        await connection.execute(
            sa.update(policies_table).where(policies_table.c.version == 1).values(state="publishing", detail="")
        )
    await database.close()


async def test_an_engine_with_another_model_is_one_clear_error(
    tmp_path: Path, trajectory_address: str, engines: list[FakeEngine], model_dir: Path
) -> None:
    engines[1].base_name = "something-else"
    async with _gateway(tmp_path, trajectory_address, engines) as gateway:
        with pytest.raises(Unavailable, match="--served-model-name demo-v0"):
            await gateway.publish(model_dir, 0)
        assert (await _states(gateway))[0] == pb.POLICY_STATE_FAILED
        engines[1].base_name = "demo-v0"
        assert (await gateway.publish(model_dir, 0)).engines_confirmed == 2


async def test_a_retired_alias_comes_back_with_its_version_0(
    pair: Gateway, engines: list[FakeEngine], adapters: list[Path], model_dir: Path
) -> None:
    await pair.publish(adapters[0], 1)
    for _ in range(2):
        await pair.stub.RetireAlias(pb.RetireAliasRequest(alias="demo"))
    assert (await pair.stub.ListEngines(pb.ListEnginesRequest())).engines == []
    with pytest.raises(Conflict, match="retired"):
        await pair.open()
    with pytest.raises(Conflict, match="version 0 again"):
        await pair.publish(adapters[1], 2)
    await pair.publish(model_dir, 0)
    assert await _current(pair) == 1
    assert engines[0].loaded == {"demo-v1"}
    await pair.publish(adapters[1], 2)


async def test_rllm_926_a_busy_engine_with_slow_health_stays_in_use(
    tmp_path: Path,
    trajectory_address: str,
    trajectory: FakeTrajectory,
    engines: list[FakeEngine],
    model_dir: Path,
) -> None:
    """rLLM #926: a busy worker that answered health late was marked dead, and calls got a traceless 500."""
    async with _gateway(
        tmp_path, trajectory_address, engines, engine_probe_s=0.05, engine_connect_timeout_s=0.1
    ) as gateway:
        await gateway.publish(model_dir, 0)
        for engine in engines:
            engine.health_delay_s = 6.0
        await asyncio.sleep(0.5)
        session = await gateway.open()
        status, _ = await gateway.chat(session.token, MESSAGES)
        assert status == 200
        listed = (await gateway.stub.ListEngines(pb.ListEnginesRequest())).engines
        assert [engine.state for engine in listed] == ["ready", "ready"]


async def test_a_lost_engine_is_taken_out_and_brought_back_with_its_adapters(
    tmp_path: Path,
    trajectory_address: str,
    trajectory: FakeTrajectory,
    engines: list[FakeEngine],
    model_dir: Path,
    adapters: list[Path],
) -> None:
    async with _gateway(
        tmp_path,
        trajectory_address,
        engines[:1],
        engine_dead_after_s=0.1,
        engine_connect_timeout_s=0.2,
        engine_probe_s=0.1,
    ) as gateway:
        await gateway.publish(model_dir, 0)
        await gateway.publish(adapters[0], 1)
        session = await gateway.open()
        engines[0].health_delay_s = 9.0
        engines[0].base_name = "rebooting"
        engines[0].loaded.clear()
        for _ in range(120):
            status, answer = await gateway.chat(session.token, MESSAGES)
            if status == 503:
                break
            await asyncio.sleep(0.05)
        assert (status, answer["error"]["code"]) == (503, "engine_unavailable")
        assert any(turn.untrainable_reason for turn in trajectory.of("a-0")), "an error turn, not a traceless 500"
        engines[0].health_delay_s = 0.0
        engines[0].base_name = "demo-v0"
        for _ in range(120):
            status, _ = await gateway.chat(session.token, MESSAGES)
            if status == 200:
                break
            await asyncio.sleep(0.05)
        assert status == 200
        assert engines[0].loaded == {"demo-v1"}
