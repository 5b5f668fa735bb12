"""Errors to the contracts' names: the one map of this service, pure."""

from collections.abc import Mapping

from longshore_common.errors import ErrorCode
from longshore_rollout_worker.domain.vocabulary import Failure, Stage

# How a sandbox ended, in the scheduler's words.
_BY_END_REASON = {
    "oom": Failure.SANDBOX_OOM,
    "image_pull": Failure.IMAGE_PULL,
    "evicted": Failure.EVICTED,
    "quota": Failure.QUOTA,
    "start_failed": Failure.SANDBOX_START,
    "unschedulable": Failure.SANDBOX_START,
}
_BY_STAGE = {
    Stage.CLAIM: Failure.SANDBOX_START,
    Stage.SESSION: Failure.GATEWAY,
    Stage.SETUP: Failure.HARNESS_SETUP,
    Stage.MODEL: Failure.GATEWAY,
    Stage.COMMAND: Failure.SANDBOX_LOST,
    Stage.VERIFY: Failure.VERIFIER_SETUP,
    Stage.SEAL: Failure.CAPTURE_INCOMPLETE,
}


def failure_of(stage: Stage, code: ErrorCode, end_reason: str = "") -> Failure:
    """The failure's name for an error of `code` at `stage`.

    end_reason says how the sandbox ended ("" when it did not, or nobody knows); it explains more than the error that
    the end caused, so it comes first.
    """
    if end_reason:
        return _BY_END_REASON.get(end_reason, Failure.SANDBOX_LOST)
    if stage is Stage.CLAIM and code is ErrorCode.QUOTA_EXCEEDED:
        return Failure.QUOTA
    return _BY_STAGE[stage]


def means_lease_lost(stage: Stage, code: ErrorCode, details: Mapping[str, str]) -> bool:
    """Whether a refusal says that a newer epoch holds the attempt: session and seal carry the lease's epoch."""
    if stage is Stage.SESSION:
        return code is ErrorCode.CONFLICT and details.get("reason") == "session_fenced"
    return stage is Stage.SEAL and code is ErrorCode.PERMISSION_DENIED and "newest_epoch" in details


def means_outcome_is_fixed(stage: Stage, code: ErrorCode, details: Mapping[str, str]) -> bool:
    """Whether a refused seal says that the attempt has its outcome already (discarded, most of all).

    A conflict that names a field is another thing: the attempt does not fit its group.
    """
    return stage is Stage.SEAL and code is ErrorCode.CONFLICT and "field" not in details
