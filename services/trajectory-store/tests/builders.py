"""Small valid objects for tests; every field can be overridden."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from longshore_trajectory_store.domain.attempts import Attempt, Purpose, SealRequest
from longshore_trajectory_store.domain.groups import Group
from longshore_trajectory_store.domain.identity import AttemptIdentity, Sampling
from longshore_trajectory_store.domain.outcomes import Failed, Failure, Reward, Scored, Termination
from longshore_trajectory_store.domain.turns import Turn, TurnStatus, VersionSpan

IDENTITY = AttemptIdentity(
    task_digest="sha256:task",
    harness_name="shell",
    harness_version="1",
    harness_config_digest="sha256:config",
    base_digest="sha256:base",
    tokenizer_digest="sha256:tokenizer",
    template_digest="sha256:template",
    sampling=Sampling(temperature=1.0, max_tokens=24),
    policy_alias="demo",
    image_digest="sha256:image",
    limits_digest="sha256:limits",
    verifier_digest="sha256:verifier",
)


def a_group(group_id: str = "g1", size: int = 2, **values: Any) -> Group:
    base = Group(
        group_id=group_id,
        run_id="run",
        purpose=Purpose.TRAIN,
        panel="",
        task_digest="sha256:task",
        step=1,
        size=size,
        min_scored=min(2, size),
        refill=False,
        created_at_ms=1000,
        seeds=tuple(range(size)),
    )
    return replace(base, **values)


def an_attempt(attempt_id: str = "g1-0", **values: Any) -> Attempt:
    group_id, _, index = attempt_id.rpartition("-")
    base = Attempt(attempt_id, group_id, "run", int(index), Purpose.TRAIN, "", "sha256:task", 7, 1000, epoch=1)
    return replace(base, **values)


def a_turn(
    attempt_id: str = "g1-0",
    turn: int = 0,
    prompt: list[int] | None = None,
    sampled: list[int] | None = None,
    version: int = 0,
    **values: Any,
) -> Turn:
    sampled = [11, 12, 13] if sampled is None else sampled
    base = Turn(
        attempt_id=attempt_id,
        lease_epoch=1,
        turn=turn,
        parent_turn=turn - 1,
        prompt_ids=np.array([1, 2, 3] if prompt is None else prompt, np.int32),
        completion_ids=np.array(sampled, np.int32),
        logprobs=np.array([-0.5 - i for i in range(len(sampled))], np.float32),
        versions=(VersionSpan(0, version),),
        status=TurnStatus.OK,
        finish_reason="stop",
        tokenizer_digest="sha256:tokenizer",
        received_at_ms=5000,
        done_at_ms=5100,
    )
    return replace(base, **values)


def a_seal(attempt_id: str = "g1-0", reward: float = 1.0, **values: Any) -> SealRequest:
    base = SealRequest(
        attempt_id=attempt_id,
        lease_epoch=1,
        outcome=Scored(reward, Termination.AGENT_DONE),
        reward=Reward(reward, keys={"reward": reward}, file_name="reward.txt"),
        identity=IDENTITY,
        agent_s=1.5,
        verifier_s=0.25,
        sandbox_id=f"sandbox-{attempt_id}",
    )
    return replace(base, **values)


def a_failed_seal(attempt_id: str = "g1-0", failure: Failure = Failure.VERIFIER_TIMEOUT, **values: Any) -> SealRequest:
    outcome = Failed(failure, "no answer in 30 s")
    return replace(a_seal(attempt_id, **values), outcome=outcome, reward=None)
