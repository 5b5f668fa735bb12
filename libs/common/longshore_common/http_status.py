"""The one map from the error tree to HTTP."""

from __future__ import annotations

from longshore_common.errors import ErrorCode, LongshoreError

_STATUS = {
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.ALREADY_EXISTS: 409,
    ErrorCode.INVALID_SPEC: 400,
    ErrorCode.QUOTA_EXCEEDED: 429,
    ErrorCode.CONFLICT: 409,
    ErrorCode.UNAVAILABLE: 503,
    ErrorCode.DEADLINE_EXCEEDED: 504,
    ErrorCode.INTERNAL: 500,
    ErrorCode.PERMISSION_DENIED: 403,
}


def to_http(error: LongshoreError) -> int:
    """The HTTP status of an error."""
    return _STATUS[error.code]


def to_body(error: LongshoreError) -> dict[str, object]:
    """The JSON body of an error: {"error": {code, message, details}}."""
    return {"error": {"code": error.code.value, "message": error.message, "details": error.details}}
