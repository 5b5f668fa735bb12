import pytest

from longshore_common.errors import ErrorCode
from longshore_rollout_worker.domain.failures import failure_of, means_lease_lost, means_outcome_is_fixed
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


@pytest.mark.parametrize(
    ("stage", "code", "details", "lost"),
    [
        (Stage.SESSION, ErrorCode.CONFLICT, {"reason": "session_fenced"}, True),
        (Stage.SESSION, ErrorCode.CONFLICT, {}, False),
        (Stage.SEAL, ErrorCode.PERMISSION_DENIED, {"epoch": "1", "newest_epoch": "2"}, True),
        (Stage.SEAL, ErrorCode.PERMISSION_DENIED, {}, False),
        (Stage.SEAL, ErrorCode.CONFLICT, {"field": "trace_digest"}, False),
        (Stage.VERIFY, ErrorCode.PERMISSION_DENIED, {"newest_epoch": "2"}, False),
    ],
)
def test_a_newer_epoch_is_told_apart_from_other_refusals(
    stage: Stage, code: ErrorCode, details: dict[str, str], lost: bool
) -> None:
    assert means_lease_lost(stage, code, details) is lost


@pytest.mark.parametrize(
    ("stage", "code", "details", "fixed"),
    [
        (Stage.SEAL, ErrorCode.CONFLICT, {}, True),
        (Stage.SEAL, ErrorCode.CONFLICT, {"field": "image_digest"}, False),
        (Stage.SESSION, ErrorCode.CONFLICT, {}, False),
    ],
)
def test_an_outcome_that_is_fixed_is_told_apart_from_a_mixed_identity(
    stage: Stage, code: ErrorCode, details: dict[str, str], fixed: bool
) -> None:
    assert means_outcome_is_fixed(stage, code, details) is fixed
