"""What a refused or failed model call means for the attempt: wait and send it again, end, fail, or stop."""

from dataclasses import dataclass

from longshore_rollout_worker.domain.vocabulary import Failure, Termination

CONNECTION_LOST = 0


@dataclass(frozen=True)
class SendAgain:
    """A passing fault; failure is its name when patience runs out."""

    failure: Failure


@dataclass(frozen=True)
class EndAttempt:
    """The agent reached a limit; its state is graded."""

    termination: Termination


@dataclass(frozen=True)
class Fail:
    """Sending it again would not help."""

    failure: Failure


@dataclass(frozen=True)
class Fenced:
    """The session belongs to an older epoch."""


ModelFault = SendAgain | EndAttempt | Fail | Fenced

_BY_CODE: dict[str, ModelFault] = {
    "context_length_exceeded": EndAttempt(Termination.CONTEXT_EXCEEDED),
    "session_token_limit": EndAttempt(Termination.TOKEN_LIMIT),
    "session_fenced": Fenced(),
    "queue_full": SendAgain(Failure.GATEWAY),
    "engine_unavailable": SendAgain(Failure.ENGINE),
    "capture_failed": SendAgain(Failure.CAPTURE_INCOMPLETE),
    "invalid_request": Fail(Failure.HARNESS_SETUP),
    "invalid_token": Fail(Failure.GATEWAY),
    "unsupported_parameter": Fail(Failure.HARNESS_SETUP),
}


def model_fault(status: int, code: str) -> ModelFault:
    """The meaning of an HTTP status and an OpenAI-style error code. Status 0: the connection broke."""
    if code in _BY_CODE:
        return _BY_CODE[code]
    if status == 429 or status == CONNECTION_LOST:
        return SendAgain(Failure.GATEWAY)
    if status in (502, 503, 504):
        return SendAgain(Failure.ENGINE)
    if 400 <= status < 500 and status not in (401, 403, 404, 408):
        # A request that our own harness built wrongly.
        return Fail(Failure.HARNESS_SETUP)
    return Fail(Failure.GATEWAY)
