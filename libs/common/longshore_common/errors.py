"""The one error tree.

    LongshoreError
    +-- NotFound
    +-- AlreadyExists
    +-- InvalidSpec         (field)
    +-- QuotaExceeded       (which)
    +-- Conflict
    +-- Unavailable         retryable
    +-- DeadlineExceeded    retryable
    +-- Internal
    +-- PermissionDenied

A message says what, where, and what to do. The maps to gRPC and HTTP live in `grpc_status` and `http_status`, so that
domain code can raise these without importing either.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class ErrorCode(StrEnum):
    """Closed set of error codes; stable across versions."""

    NOT_FOUND = "not_found"
    ALREADY_EXISTS = "already_exists"
    INVALID_SPEC = "invalid_spec"
    QUOTA_EXCEEDED = "quota_exceeded"
    CONFLICT = "conflict"
    UNAVAILABLE = "unavailable"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    INTERNAL = "internal"
    PERMISSION_DENIED = "permission_denied"


class LongshoreError(Exception):
    """Base of all errors that cross a service's edge.

    Attributes:
        code: which kind it is.
        message: for people; what, where, what to do.
        retryable: whether the same call may succeed later.
        details: for programs; string to string.
    """

    code: ErrorCode = ErrorCode.INTERNAL
    retryable: bool = False

    def __init__(
        self, message: str, *, details: Mapping[str, str] | None = None, retryable: bool | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, str] = dict(details or {})
        if retryable is not None:
            self.retryable = retryable

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.details, self.retryable))


class NotFound(LongshoreError):
    """The named thing does not exist."""

    code = ErrorCode.NOT_FOUND


class AlreadyExists(LongshoreError):
    """The name is taken by something else."""

    code = ErrorCode.ALREADY_EXISTS


class InvalidSpec(LongshoreError):
    """What the caller gave is wrong; `field` names where."""

    code = ErrorCode.INVALID_SPEC

    def __init__(self, message: str, *, field: str = "", details: Mapping[str, str] | None = None) -> None:
        super().__init__(message, details={**(details or {}), **({"field": field} if field else {})})

    @property
    def field(self) -> str:
        """Dotted path of the wrong field, or empty."""
        return self.details.get("field", "")


class QuotaExceeded(LongshoreError):
    """A limit is reached; `which` names it (e.g. "disk", "sandboxes")."""

    code = ErrorCode.QUOTA_EXCEEDED

    def __init__(self, message: str, *, which: str = "", details: Mapping[str, str] | None = None) -> None:
        super().__init__(message, details={**(details or {}), **({"which": which} if which else {})})

    @property
    def which(self) -> str:
        """The limit's name, or empty."""
        return self.details.get("which", "")


class Conflict(LongshoreError):
    """The call contradicts what is already recorded (older epoch or incarnation, other content)."""

    code = ErrorCode.CONFLICT


class Unavailable(LongshoreError):
    """The other side cannot be reached or is not ready; try again."""

    code = ErrorCode.UNAVAILABLE
    retryable = True


class DeadlineExceeded(LongshoreError):
    """No answer in time; whether the call acted is unknown."""

    code = ErrorCode.DEADLINE_EXCEEDED
    retryable = True


class Internal(LongshoreError):
    """A fault of ours."""

    code = ErrorCode.INTERNAL


class PermissionDenied(LongshoreError):
    """The caller is not who it must be."""

    code = ErrorCode.PERMISSION_DENIED


BY_CODE: dict[ErrorCode, type[LongshoreError]] = {
    kind.code: kind
    for kind in (
        NotFound,
        AlreadyExists,
        InvalidSpec,
        QuotaExceeded,
        Conflict,
        Unavailable,
        DeadlineExceeded,
        Internal,
        PermissionDenied,
    )
}


def _rebuild(kind: type[LongshoreError], message: str, details: dict[str, str], retryable: bool) -> LongshoreError:
    error = kind(message, details=details)
    error.retryable = retryable
    return error


def from_code(code: ErrorCode, message: str, details: Mapping[str, str], retryable: bool) -> LongshoreError:
    """The error of `code`, as it was raised on the other side."""
    return _rebuild(BY_CODE[code], message, dict(details), retryable)
