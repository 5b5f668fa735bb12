import pytest

from longshore_common.errors import ErrorCode
from longshore_rollout_worker.domain.failures import failure_of, means_lease_lost
from longshore_rollout_worker.domain.vocabulary import Failure, Stage

TABLE = [
    (Stage.CLAIM, ErrorCode.QUOTA_EXCEEDED, "", Failure.QUOTA),
    (Stage.CLAIM, ErrorCode.INVALID_SPEC, "", Failure.SANDBOX_START),
    (Stage.CLAIM, ErrorCode.UNAVAILABLE, "", Failure.SANDBOX_START),
    (Stage.CLAIM, ErrorCode.DEADLINE_EXCEEDED, "", Failure.SANDBOX_START),
    (Stage.CLAIM, ErrorCode.UNAVAILABLE, "image_pull", Failure.IMAGE_PULL),
    (Stage.CLAIM, ErrorCode.INTERNAL, "evicted", Failure.EVICTED),
    (Stage.CLAIM, ErrorCode.INTERNAL, "unschedulable", Failure.SANDBOX_START),
    (Stage.CLAIM, ErrorCode.INTERNAL, "start_failed", Failure.SANDBOX_START),
    (Stage.CLAIM, ErrorCode.INTERNAL, "quota", Failure.QUOTA),
    (Stage.SESSION, ErrorCode.NOT_FOUND, "", Failure.GATEWAY),
    (Stage.SESSION, ErrorCode.UNAVAILABLE, "", Failure.GATEWAY),
    (Stage.SETUP, ErrorCode.NOT_FOUND, "", Failure.HARNESS_SETUP),
    (Stage.MODEL, ErrorCode.UNAVAILABLE, "", Failure.GATEWAY),
    (Stage.COMMAND, ErrorCode.UNAVAILABLE, "", Failure.SANDBOX_LOST),
    (Stage.COMMAND, ErrorCode.PERMISSION_DENIED, "", Failure.SANDBOX_LOST),
    (Stage.COMMAND, ErrorCode.UNAVAILABLE, "oom", Failure.SANDBOX_OOM),
    (Stage.COMMAND, ErrorCode.NOT_FOUND, "evicted", Failure.EVICTED),
    (Stage.COMMAND, ErrorCode.NOT_FOUND, "expired", Failure.SANDBOX_LOST),
    (Stage.COMMAND, ErrorCode.NOT_FOUND, "deleted", Failure.SANDBOX_LOST),
    (Stage.COMMAND, ErrorCode.NOT_FOUND, "node_lost", Failure.SANDBOX_LOST),
    (Stage.COMMAND, ErrorCode.NOT_FOUND, "a word of a newer scheduler", Failure.SANDBOX_LOST),
    (Stage.VERIFY, ErrorCode.DEADLINE_EXCEEDED, "", Failure.VERIFIER_SETUP),
    (Stage.SEAL, ErrorCode.ALREADY_EXISTS, "", Failure.CAPTURE_INCOMPLETE),
]


@pytest.mark.parametrize(("stage", "code", "end", "failure"), TABLE)
def test_each_error_has_the_contracts_name(stage: Stage, code: ErrorCode, end: str, failure: Failure) -> None:
    assert failure_of(stage, code, end) is failure


def test_every_stage_and_code_has_a_name() -> None:
    for stage in Stage:
        for code in ErrorCode:
            assert failure_of(stage, code) in Failure


def test_only_writes_that_carry_the_epoch_can_say_that_the_lease_is_lost() -> None:
    lost = {stage for stage in Stage if means_lease_lost(stage, ErrorCode.CONFLICT)}
    assert lost == {Stage.SESSION, Stage.SEAL}
    assert not any(means_lease_lost(Stage.SEAL, code) for code in ErrorCode if code is not ErrorCode.CONFLICT)
