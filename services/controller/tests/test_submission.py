from __future__ import annotations

import json

import pytest

from longshore_common.errors import InvalidSpec
from longshore_controller.domain.plan import ResolvedPlan
from longshore_controller.domain.vocabulary import TaskState

from .builders import SPEC
from .conftest import Harbor


async def test_dry_run_resolves_digests_and_changes_nothing(harbor: Harbor) -> None:
    async with harbor.controller(worker=False, serve=False) as living:
        app = living.parts.application
        run, created = await app.submission.submit(SPEC, True, "key")
        assert not created
        assert run.run_id == ""
        assert (await app.queries.page(0, ""))[0] == []
    plan = ResolvedPlan.model_validate_json(run.plan_json)
    assert plan.attempts.train == 3 * 2 * 2
    assert plan.attempts.dev == 3 * 2
    assert plan.attempts.test == 2 * 8
    assert plan.dev_panels == (0, 2, 3)
    assert {split: len(digests) for split, digests in plan.tasks.items()} == {"train": 4, "dev": 2, "test": 8}
    assert run.plan_digest == plan.digest()
    for value in (plan.dataset_digest, plan.harness_config_digest, plan.verifier_digest, plan.demonstrations_digest):
        assert value is not None
        assert value.startswith("sha256:")


async def test_plan_digest_depends_on_content_not_on_paths(harbor: Harbor) -> None:
    async with harbor.controller(worker=False, serve=False) as living:
        submit = living.parts.application.submission.submit

        async def digest_of(text: str) -> str:
            return (await submit(text, True, ""))[0].plan_digest

        original = await digest_of(SPEC)
        assert await digest_of(SPEC.replace("path: model", "path: elsewhere")) == original
        assert await digest_of(SPEC.replace("agent_timeout_s: 5", "agent_timeout_s: 5.0")) == original
        assert await digest_of(SPEC.replace("seed: 7", "seed: 8")) != original
        assert await digest_of(SPEC.replace("protocol: bare", "protocol: tools")) != original


async def test_same_key_is_the_same_run(harbor: Harbor) -> None:
    async with harbor.controller(worker=False, serve=False) as living:
        first, second = await living.submit(SPEC, "k"), await living.submit(SPEC, "k")
        third = await living.submit(SPEC, "other")
    assert first.run_id == second.run_id != third.run_id


async def refused(harbor: Harbor, text: str = SPEC) -> str:
    async with harbor.controller(worker=False, serve=False) as living:
        with pytest.raises(InvalidSpec) as caught:
            await living.parts.application.submission.submit(text, False, "")
        assert (await living.parts.application.queries.page(0, ""))[0] == []
    return caught.value.message


async def test_unknown_dataset(harbor: Harbor) -> None:
    assert "there are: demo" in await refused(harbor, SPEC.replace("dataset: demo", "dataset: domo"))


async def test_wrong_dataset_digest(harbor: Harbor) -> None:
    assert "has digest sha256:" in await refused(harbor, SPEC.replace("dataset: demo", 'dataset: "demo@sha256:0"'))


async def test_unprobed_tasks_are_refused_with_their_names(harbor: Harbor) -> None:
    harbor.catalog.states = {"test-3": TaskState.NEEDS_PROBE, "train-0": TaskState.FLAKY}
    message = await refused(harbor)
    assert "2 tasks are not evaluable" in message
    assert "test: test-3 (needs_probe)" in message
    assert "train: train-0 (flaky)" in message


async def test_unprobed_tasks_can_be_left_out_and_are_listed(harbor: Harbor) -> None:
    harbor.catalog.states = {"test-3": TaskState.NEEDS_PROBE}
    async with harbor.controller(worker=False, serve=False) as living:
        text = SPEC.replace("{dataset: demo}", "{dataset: demo, unready: exclude}")
        run, _ = await living.parts.application.submission.submit(text, True, "")
    plan = json.loads(run.plan_json)
    assert [(task["name"], task["split"], task["reason"]) for task in plan["excluded"]] == [
        ("test-3", "test", "needs_probe")
    ]
    assert len(plan["tasks"]["test"]) == 7


async def test_overlapping_splits_are_refused(harbor: Harbor) -> None:
    harbor.catalog.overlap = True
    assert "splits must be disjoint" in await refused(harbor)


async def test_missing_split_is_refused(harbor: Harbor) -> None:
    harbor.catalog.sizes = {"train": 4, "test": 8}
    assert "no usable task in split 'dev'" in await refused(harbor)
