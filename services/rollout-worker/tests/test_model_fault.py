import pytest

from longshore_rollout_worker.domain.model_fault import EndAttempt, Fail, Fenced, ModelFault, SendAgain, model_fault
from longshore_rollout_worker.domain.vocabulary import Failure, Termination

TABLE: list[tuple[int, str, ModelFault]] = [
    (401, "invalid_token", Fail(Failure.GATEWAY)),
    (400, "context_length_exceeded", EndAttempt(Termination.CONTEXT_EXCEEDED)),
    (400, "session_token_limit", EndAttempt(Termination.TOKEN_LIMIT)),
    (409, "session_fenced", Fenced()),
    (429, "queue_full", SendAgain(Failure.GATEWAY)),
    (429, "", SendAgain(Failure.GATEWAY)),
    (503, "engine_unavailable", SendAgain(Failure.ENGINE)),
    (503, "capture_failed", SendAgain(Failure.CAPTURE_INCOMPLETE)),
    (400, "invalid_request", Fail(Failure.HARNESS_SETUP)),
    (503, "", SendAgain(Failure.ENGINE)),
    (502, "", SendAgain(Failure.ENGINE)),
    (0, "", SendAgain(Failure.GATEWAY)),
    (400, "unsupported_parameter", Fail(Failure.HARNESS_SETUP)),
    (422, "", Fail(Failure.HARNESS_SETUP)),
    (404, "", Fail(Failure.GATEWAY)),
    (500, "", Fail(Failure.GATEWAY)),
    (301, "", Fail(Failure.GATEWAY)),
]


@pytest.mark.parametrize(("status", "code", "fault"), TABLE)
def test_each_refusal_has_one_meaning(status: int, code: str, fault: ModelFault) -> None:
    assert model_fault(status, code) == fault
