"""The store's contract, on SQLite and on Postgres."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from longshore_common.clock import SystemClock
from longshore_common.errors import Conflict, InvalidSpec, NotFound, PermissionDenied
from longshore_trajectory_store.bootstrap import open_database
from longshore_trajectory_store.domain.attempts import AttemptState, Purpose
from longshore_trajectory_store.domain.batches import TakeRequest
from longshore_trajectory_store.domain.groups import GroupState
from longshore_trajectory_store.domain.outcomes import Discarded, DiscardReason, Failed, Failure, Scored
from longshore_trajectory_store.domain.ports import AttemptFilter, GroupFilter
from longshore_trajectory_store.domain.turns import TurnStatus
from longshore_trajectory_store.store.sql_store import SqlTrajectoryStore

from .builders import IDENTITY, a_failed_seal, a_group, a_seal, a_turn


def take(step: int = 1, groups: int = 1, max_staleness: int = 8, incarnation: int = 1) -> TakeRequest:
    return TakeRequest("run", incarnation, step, max_staleness, groups)


async def filled(store: SqlTrajectoryStore, group_id: str, version: int = 0, size: int = 2, **values) -> None:
    """A group whose attempts are all scored and trainable."""
    await store.create_group(a_group(group_id, size=size, **values), [])
    for index in range(size):
        attempt_id = f"{group_id}-{index}"
        await store.fence(attempt_id, 1)
        await store.append_turn(a_turn(attempt_id, version=version))
        await store.seal(a_seal(attempt_id, reward=float(index), start_version=version))


async def state_of(store: SqlTrajectoryStore, group_id: str) -> GroupState:
    return (await store.get_group(group_id))[0].state


async def test_create_group_is_idempotent_by_content(store) -> None:
    made, created = await store.create_group(a_group(), [])
    assert created
    again, created = await store.create_group(a_group(created_at_ms=99), ["g1-0", "g1-1"])
    assert (again, created) == (made, False)
    with pytest.raises(Conflict, match="size 2, not 3"):
        await store.create_group(a_group(size=3), [])
    _, attempts = await store.get_group("g1")
    assert [(a.attempt_id, a.seed, a.epoch, a.state) for a in attempts] == [
        ("g1-0", 0, 0, AttemptState.OPEN),
        ("g1-1", 1, 0, AttemptState.OPEN),
    ]


async def test_a_turn_comes_back_as_it_was_given(store) -> None:
    await store.create_group(a_group(), [])
    turn = a_turn(
        request_zst=b"\x00q", response_zst=b"r", tools_zst=b"t", served_name="demo-v3", version=3, engine="e1"
    )
    await store.append_turn(turn)
    _, (back,) = await store.get_attempt("g1-0", with_turns=True)
    for name in ("prompt_ids", "completion_ids", "logprobs"):
        assert np.array_equal(getattr(back, name), getattr(turn, name))
    blank = dict.fromkeys(("prompt_ids", "completion_ids", "logprobs"))
    assert replace(back, **blank) == replace(turn, **blank)


async def test_an_error_turn_without_tokens_is_kept(store) -> None:
    await store.create_group(a_group(), [])
    await store.append_turn(a_turn(prompt=[], sampled=[], status=TurnStatus.ERROR, versions=(), finish_reason="error"))
    _, (back,) = await store.get_attempt("g1-0", with_turns=True)
    assert (back.status, back.prompt_ids.size, back.trainable) == (TurnStatus.ERROR, 0, False)


async def test_a_resent_turn_is_one_turn(store) -> None:
    """rllm #707, #727: a resend doubled or reset a turn."""
    await store.create_group(a_group(), [])
    number = await store.append_turn(a_turn())
    assert await store.append_turn(a_turn()) == number
    assert await asyncio.gather(*[store.append_turn(a_turn()) for _ in range(5)]) == [number] * 5
    with pytest.raises(Conflict, match="stored with other content"):
        await store.append_turn(a_turn(sampled=[11, 12, 14]))
    with pytest.raises(Conflict, match="stored with other content"):
        await store.append_turn(a_turn(response_zst=b"another"))
    _, turns = await store.get_attempt("g1-0", with_turns=True)
    assert [turn.completion_ids.tolist() for turn in turns] == [[11, 12, 13]]


async def test_two_contents_for_one_turn_at_once_one_wins(store) -> None:
    await store.create_group(a_group(), [])
    contents = [a_turn(sampled=[i, i]) for i in range(6)]
    answers = await asyncio.gather(*[store.append_turn(turn) for turn in contents], return_exceptions=True)
    assert sorted(type(answer).__name__ for answer in answers) == ["Conflict"] * 5 + ["int"]


async def test_concurrent_appends_share_a_transaction_and_one_refusal_harms_no_other(store) -> None:
    await store.create_group(a_group(size=40), [])
    await store.fence("g1-7", 2)
    calls = [store.append_turn(a_turn(f"g1-{i}", turn=k)) for i in range(40) for k in range(3)]
    answers = await asyncio.gather(*calls, store.append_turn(a_turn("nobody-0")), return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, Exception)]
    assert sorted(type(error).__name__ for error in refused) == ["NotFound"] + ["PermissionDenied"] * 3
    assert len({answer for answer in answers if isinstance(answer, int)}) == 117


async def test_a_zombie_worker_cannot_write(store) -> None:
    await store.create_group(a_group(), [])
    await store.fence("g1-0", 1)
    await store.append_turn(a_turn())
    await store.fence("g1-0", 2)
    with pytest.raises(PermissionDenied, match="lease epoch 1 is older than epoch 2"):
        await store.append_turn(a_turn(turn=1))
    with pytest.raises(PermissionDenied, match="lease epoch 1 is older than epoch 2"):
        await store.seal(a_seal())
    with pytest.raises(PermissionDenied, match="lease epoch 1 is older than epoch 2"):
        await store.fence("g1-0", 1)
    await store.fence("g1-0", 2)
    await store.append_turn(a_turn(sampled=[99], lease_epoch=2))
    attempt, _ = await store.seal(a_seal(lease_epoch=2))
    _, turns = await store.get_attempt("g1-0", with_turns=True)
    assert [turn.completion_ids.tolist() for turn in turns] == [[99]]
    assert (attempt.turns, attempt.completion_tokens) == (1, 1)


async def test_a_newer_epoch_may_write_without_a_fence_and_raises_it(store) -> None:
    await store.create_group(a_group(), [])
    await store.append_turn(a_turn(lease_epoch=4))
    with pytest.raises(PermissionDenied):
        await store.append_turn(a_turn(lease_epoch=3))


async def test_seal_is_idempotent_and_final(store) -> None:
    await store.create_group(a_group(), [])
    await store.append_turn(a_turn())
    first, group = await store.seal(a_seal())
    assert group.state is GroupState.OPEN
    again, _ = await store.seal(a_seal())
    assert again == first
    with pytest.raises(Conflict, match="already scored"):
        await store.seal(a_seal(reward=0.0))
    with pytest.raises(Conflict, match="already scored"):
        await store.append_turn(a_turn(turn=1))
    with pytest.raises(Conflict, match="already scored"):
        await store.fence("g1-0", 2)
    assert first.sequence == 1


async def test_a_refused_seal_leaves_the_attempt_open(store) -> None:
    await store.create_group(a_group(), [])
    await store.append_turn(a_turn("g1-0"))
    await store.append_turn(a_turn("g1-1"))
    await store.seal(a_seal("g1-0"))
    with pytest.raises(Conflict, match="policy_alias"):
        await store.seal(a_seal("g1-1", identity=replace(IDENTITY, policy_alias="other")))
    attempt, _ = await store.get_attempt("g1-1", with_turns=False)
    assert attempt.state is AttemptState.OPEN
    _, group = await store.seal(a_failed_seal("g1-1", Failure.GATEWAY))
    assert group.state is GroupState.INSUFFICIENT


async def test_only_a_complete_group_is_available(store) -> None:
    await store.create_group(a_group(size=3), [])
    for index in range(3):
        await store.append_turn(a_turn(f"g1-{index}"))
        assert (await store.take_batch(take())).batch is None
        if index < 2:
            await store.seal(a_seal(f"g1-{index}"))
    _, group = await store.seal(a_failed_seal("g1-2"))
    assert group.state is GroupState.AVAILABLE
    batch = (await store.take_batch(take())).batch
    assert [a.reward for a in batch.groups[0].attempts] == [1.0, 1.0, None]
    assert batch.groups[0].attempts[2].segments == ()
    assert batch.groups[0].attempts[0].segments[0].token_ids.tolist() == [1, 2, 3, 11, 12, 13]


async def test_incomplete_capture_is_no_training_data(store) -> None:
    await store.create_group(a_group(), [])
    await store.append_turn(a_turn(logprobs=np.array([-1.0], np.float32)))
    attempt, _ = await store.seal(a_seal())
    assert attempt.outcome == Failed(Failure.CAPTURE_INCOMPLETE, "turn 0: 3 completion ids, 1 logprobs")
    assert await store.seal(a_seal()) == (attempt, (await store.get_group("g1"))[0])


async def test_batches_are_first_in_first_out_by_step(store) -> None:
    await filled(store, "late", step=2)
    await filled(store, "early", step=1)
    result = await store.take_batch(take())
    assert [group.group_id for group in result.batch.groups] == ["early"]
    assert result.groups_available == 1


async def test_taking_again_gives_the_same_batch(store) -> None:
    for name in ("a", "b", "c"):
        await filled(store, name)
    first = (await store.take_batch(take(groups=2))).batch
    again = (await store.take_batch(take(groups=2))).batch
    assert [g.group_id for g in again.groups] == [g.group_id for g in first.groups] == ["a", "b"]
    assert again.batch_id == first.batch_id
    assert (await store.take_batch(take(step=2, groups=2))).batch is None
    assert [g.group_id for g in (await store.take_batch(take(step=2))).batch.groups] == ["c"]


async def test_commit_consumes_once_and_is_idempotent(store) -> None:
    await filled(store, "a")
    batch = (await store.take_batch(take())).batch
    with pytest.raises(NotFound):
        await store.commit_batch("run", 1, 1, "batch-unknown")
    with pytest.raises(Conflict, match="is of step 1, not 2"):
        await store.commit_batch("run", 1, 2, batch.batch_id)
    for _ in range(2):
        await store.commit_batch("run", 1, 1, batch.batch_id)
    group, _ = await store.get_group("a")
    assert (group.state, group.consumed_step) == (GroupState.CONSUMED, 1)
    with pytest.raises(Conflict, match="step 1 is trained and committed; the next is 2"):
        await store.take_batch(take())
    assert await store.discard(["a-0"], DiscardReason.STALE) == 0


async def test_stale_attempts_go_when_the_batch_is_taken(store) -> None:
    """prime-rl #2674, #3313: the lag counts the time in the queue."""
    await filled(store, "old", version=0)
    await filled(store, "new", version=3)
    result = await store.take_batch(take(step=4, max_staleness=1))
    assert [g.group_id for g in result.batch.groups] == ["new"]
    assert [a.staleness for a in result.batch.groups[0].attempts] == [0, 0]
    group, attempts = await store.get_group("old")
    assert group.state is GroupState.DISCARDED
    assert {a.outcome for a in attempts} == {Discarded(DiscardReason.STALE)}


async def test_the_lag_rule_judges_each_attempt(store) -> None:
    await store.create_group(a_group(size=3), [])
    for index, version in enumerate((0, 1, 1)):
        await store.append_turn(a_turn(f"g1-{index}", version=version))
        await store.seal(a_seal(f"g1-{index}", start_version=version))
    batch = (await store.take_batch(take(step=2, max_staleness=0))).batch
    assert [a.attempt_id for a in batch.groups[0].attempts] == ["g1-1", "g1-2"]
    counts = await store.counts("run", Purpose.TRAIN, "")
    assert (counts.planned, counts.scored, counts.by_discard) == (3, 2, {"stale": 1})


async def test_unusable_groups_do_not_block_the_next_batch(store) -> None:
    """SkyRL #1802: three filtered groups must not shrink the capacity: the refill is taken."""
    for name in ("a", "b", "c"):
        await store.create_group(a_group(name), [])
        for index in range(2):
            await store.seal(a_failed_seal(f"{name}-{index}", identity=None))
        assert await state_of(store, name) is GroupState.INSUFFICIENT
    assert (await store.take_batch(take())).batch is None
    await filled(store, "d", refill=True)
    assert [g.group_id for g in (await store.take_batch(take())).batch.groups] == ["d"]
    counts = await store.counts("run", Purpose.TRAIN, "")
    assert (counts.planned, counts.refilled, counts.failed, counts.scored) == (6, 2, 6, 2)


async def test_discard_cancels_what_is_open_and_sweeps_what_is_untrained(store) -> None:
    await filled(store, "a")
    await store.create_group(a_group("b"), [])
    assert await store.discard(["a-0", "b-0"], DiscardReason.CANCELLED) == 1
    assert await store.discard(["b-0"], DiscardReason.CANCELLED) == 0
    with pytest.raises(Conflict, match=r"discarded \(cancelled\)"):
        await store.append_turn(a_turn("b-0"))
    with pytest.raises(Conflict, match=r"discarded \(cancelled\)"):
        await store.seal(a_seal("b-0"))
    with pytest.raises(NotFound, match="nobody-1"):
        await store.discard(["b-1", "nobody-1"], DiscardReason.SURPLUS)
    assert await store.discard(["b-1"], DiscardReason.SURPLUS) == 1
    assert await state_of(store, "b") is GroupState.DISCARDED
    # The rest of the group falls with it: one attempt alone has no baseline.
    assert await store.discard(["a-1"], DiscardReason.STALE) == 2
    assert await state_of(store, "a") is GroupState.DISCARDED


async def test_resume_takes_over_and_the_manifest_wins(store) -> None:
    for name in ("a", "b", "c"):
        await filled(store, name)
    in_manifest = (await store.take_batch(take(step=1))).batch
    lost = (await store.take_batch(take(step=2))).batch
    assert await store.resume_run("run", 2, 1, ["a"]) == (1, 0)
    assert [await state_of(store, name) for name in ("a", "b", "c")] == [
        GroupState.CONSUMED,
        GroupState.AVAILABLE,
        GroupState.AVAILABLE,
    ]
    with pytest.raises(Conflict, match="incarnation 1 is older than 2"):
        await store.take_batch(take(step=2))
    with pytest.raises(Conflict, match="incarnation 1 is older than 2"):
        await store.commit_batch("run", 1, 2, lost.batch_id)
    with pytest.raises(Conflict, match="incarnation 1 is older than 2"):
        await store.resume_run("run", 1, 1, [])
    with pytest.raises(Conflict, match="released by a resume"):
        await store.commit_batch("run", 2, 2, lost.batch_id)
    await store.commit_batch("run", 2, 1, in_manifest.batch_id)
    assert (await store.get_group("a"))[0].consumed_step == 1
    with pytest.raises(Conflict, match="step 1 is trained"):
        await store.take_batch(take(step=1, incarnation=2))
    again = (await store.take_batch(take(step=2, groups=2, incarnation=2))).batch
    assert [g.group_id for g in again.groups] == ["b", "c"]


async def test_a_resume_repeats_without_taking_a_batch_away(store) -> None:
    await filled(store, "a")
    assert await store.resume_run("run", 3, 0, []) == (0, 0)
    batch = (await store.take_batch(take(incarnation=3))).batch
    assert await store.resume_run("run", 3, 0, []) == (0, 0)
    assert (await store.take_batch(take(incarnation=3))).batch.batch_id == batch.batch_id
    with pytest.raises(Conflict, match="use a new incarnation"):
        await store.resume_run("run", 3, 0, ["a"])
    with pytest.raises(Conflict, match="call ResumeRun first"):
        await store.take_batch(take(incarnation=4))


async def test_the_same_incarnation_may_go_back_to_its_own_newer_manifest(store) -> None:
    """torchrun restarts a dead rank group without a new incarnation."""
    await filled(store, "a")
    await filled(store, "b")
    await store.resume_run("run", 1, 0, [])
    await store.take_batch(take(step=1))
    lost = (await store.take_batch(take(step=2))).batch
    assert await store.resume_run("run", 1, 1, ["a"]) == (1, 0)
    again = (await store.take_batch(take(step=2))).batch
    assert again.batch_id != lost.batch_id
    assert [g.group_id for g in again.groups] == ["b"]


async def test_attempts_of_an_uncommitted_version_become_stale(store) -> None:
    await filled(store, "kept", version=1)
    await filled(store, "lost", version=2)
    await store.create_group(a_group("running"), [])
    await store.append_turn(a_turn("running-0", version=2))
    await store.append_turn(a_turn("running-1", version=1))
    assert await store.resume_run("run", 2, 1, []) == (0, 3)
    assert await state_of(store, "lost") is GroupState.DISCARDED
    _, attempts = await store.get_group("running")
    assert [a.outcome for a in attempts] == [Discarded(DiscardReason.STALE), None]
    batch = (await store.take_batch(take(step=2, incarnation=2))).batch
    assert [g.group_id for g in batch.groups] == ["kept"]


async def test_in_flight_groups_survive_a_crash_each_once(store) -> None:
    """NeMo-RL #3599, rllm's dispatched cursor: 8 groups, 4 in flight at the crash; each is trained on exactly once."""
    names = [f"p{i}" for i in range(8)]
    for name in names:
        await filled(store, name)
    trained: list[str] = []
    batch = (await store.take_batch(take(step=1, groups=2))).batch
    trained += [g.group_id for g in batch.groups]
    await store.commit_batch("run", 1, 1, batch.batch_id)
    await store.take_batch(take(step=2, groups=2))
    await store.take_batch(take(step=3, groups=2))
    assert (await store.resume_run("run", 2, 1, trained))[0] == 4
    for step in (2, 3, 4):
        batch = (await store.take_batch(take(step=step, groups=2, incarnation=2))).batch
        trained += [g.group_id for g in batch.groups]
        await store.commit_batch("run", 2, step, batch.batch_id)
    assert trained == names


async def test_a_resume_at_the_end_of_a_pass_still_trains_the_rest(store) -> None:
    """verl #5725, #7401: 4 rows, batch 2, saved at 2: the resume trained 0 steps."""
    for name in "abcd":
        await filled(store, name)
    batch = (await store.take_batch(take(step=1, groups=2))).batch
    await store.commit_batch("run", 1, 1, batch.batch_id)
    await store.resume_run("run", 2, 1, ["a", "b"])
    batch = (await store.take_batch(take(step=2, groups=2, incarnation=2))).batch
    assert [g.group_id for g in batch.groups] == ["c", "d"]


async def test_a_closed_run_gives_nothing_until_it_is_resumed(store) -> None:
    await filled(store, "a")
    await store.create_group(a_group("b"), [])
    await store.create_group(a_group("e", purpose=Purpose.EVAL, panel="dev@1", min_scored=0), [])
    assert await store.close_run("run", discard_open=True) == 4
    assert (await store.take_batch(take())).closed
    with pytest.raises(Conflict, match="run run is closed"):
        await store.create_group(a_group("c"), [])
    _, created = await store.create_group(a_group("t", purpose=Purpose.EVAL, panel="test:final", min_scored=0), [])
    assert created
    await store.resume_run("run", 2, 0, [])
    assert [g.group_id for g in (await store.take_batch(take(incarnation=2))).batch.groups] == ["a"]


async def test_counts_keep_train_and_eval_apart_and_count_retries_beside(store) -> None:
    await filled(store, "a")
    await store.create_group(a_group("b", refill=True), [])
    await store.fence("b-0", 3)
    await store.create_group(a_group("e", purpose=Purpose.EVAL, panel="dev@1", min_scored=0), [])
    await store.seal(a_failed_seal("e-0", Failure.ENGINE, identity=None))
    counts = await store.counts("run", Purpose.TRAIN, "")
    assert (counts.planned, counts.refilled, counts.scored, counts.open, counts.retried) == (2, 2, 2, 2, 2)
    counts = await store.counts("run", Purpose.EVAL, "dev@1")
    assert (counts.planned, counts.failed, counts.open, counts.by_failure) == (2, 1, 1, {"engine": 1})
    assert (await store.counts("run", Purpose.EVAL, "test:final")).planned == 0


async def test_lists_filter_and_page(store) -> None:
    for name in ("a", "b", "c"):
        await store.create_group(a_group(name, step=2 if name == "c" else 1), [])
    await store.seal(a_failed_seal("b-1", identity=None))
    seen: list[str] = []
    after = 0
    while True:
        page = await store.list_attempts(AttemptFilter(run_id="run"), 4, after)
        seen += [a.attempt_id for a in page.items]
        after = page.next_after
        if not after:
            break
    assert seen == [f"{name}-{i}" for name in "abc" for i in range(2)]
    sealed = await store.list_attempts(AttemptFilter(run_id="run", state=AttemptState.SEALED), 10, 0)
    assert [a.attempt_id for a in sealed.items] == ["b-1"]
    assert [g.group_id for g in (await store.list_groups(GroupFilter(run_id="run", step=2), None, 0)).items] == ["c"]
    first = await store.list_groups(GroupFilter(run_id="run"), 2, 0)
    rest = await store.list_groups(GroupFilter(run_id="run"), 2, first.next_after)
    assert [g.group_id for g in first.items + rest.items] == ["a", "b", "c"]
    assert rest.next_after == 0


async def test_sealed_events_have_no_gap(store) -> None:
    await filled(store, "a")
    await store.create_group(a_group("b", run_id="other"), [])
    await store.discard(["b-0"], DiscardReason.CANCELLED)
    events = await store.sealed_after("run", 0, 10)
    assert [(a.attempt_id, a.sequence) for a, _ in events] == [("a-0", 1), ("a-1", 2)]
    assert events[1][1].state is GroupState.AVAILABLE
    assert [a.sequence for a, _ in await store.sealed_after("", 1, 10)] == [2, 3]
    await store.discard(["a-0"], DiscardReason.STALE)
    late = await store.sealed_after("run", 2, 10)
    assert sorted(a.attempt_id for a, _ in late) == ["a-0", "a-1"]
    assert {g.state for _, g in late} == {GroupState.DISCARDED}


@pytest.mark.parametrize("field", ["step", "groups", "incarnation"])
async def test_a_take_that_makes_no_sense_is_refused(store, field) -> None:
    with pytest.raises(InvalidSpec) as caught:
        await store.take_batch(replace(take(), **{field: 0}))
    assert caught.value.field == field


async def test_two_replicas_agree(store, database_url) -> None:
    """Two processes, one database: every seal settles its group, every group is taken once, no number is used twice."""
    other = SqlTrajectoryStore(open_database(database_url), SystemClock())
    replicas = (store, other)
    names = [f"g{i}" for i in range(6)]
    for name in names:
        await store.create_group(a_group(name), [])

    async def run_attempt(name: str, index: int) -> None:
        replica = replicas[index]
        await replica.append_turn(a_turn(f"{name}-{index}"))
        await replica.seal(a_seal(f"{name}-{index}", reward=float(index)))

    await asyncio.gather(*[run_attempt(name, index) for name in names for index in range(2)])
    assert {await state_of(store, name) for name in names} == {GroupState.AVAILABLE}
    events = await store.sealed_after("run", 0, 100)
    assert sorted(a.sequence for a, _ in events) == list(range(1, 13))
    takes = [replicas[step % 2].take_batch(take(step=step, groups=2)) for step in (1, 2, 3)]
    batches = [result.batch for result in await asyncio.gather(*takes)]
    assert sorted(g.group_id for batch in batches for g in batch.groups) == names
    same = await asyncio.gather(*[replica.take_batch(take(step=1, groups=2)) for replica in replicas])
    assert {result.batch.batch_id for result in same} == {batches[0].batch_id}
    await other.close()


async def test_scored_rewards_survive_the_round_trip(store) -> None:
    await filled(store, "a")
    attempt, _ = await store.get_attempt("a-1", with_turns=False)
    assert isinstance(attempt.outcome, Scored)
    assert attempt.reward.keys == {"reward": 1.0}
    assert attempt.identity == IDENTITY
