"""The one map between the error tree and gRPC. Details travel as JSON in trailing metadata."""

from __future__ import annotations

import json
from typing import Any

import grpc

from longshore_common.errors import ErrorCode, Internal, LongshoreError, from_code

DETAIL_KEY = "longshore-error-bin"

_STATUS = {
    ErrorCode.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorCode.ALREADY_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    ErrorCode.INVALID_SPEC: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.QUOTA_EXCEEDED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.CONFLICT: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.DEADLINE_EXCEEDED: grpc.StatusCode.DEADLINE_EXCEEDED,
    ErrorCode.INTERNAL: grpc.StatusCode.INTERNAL,
    ErrorCode.PERMISSION_DENIED: grpc.StatusCode.PERMISSION_DENIED,
}
_CODE = {status: code for code, status in _STATUS.items()} | {
    grpc.StatusCode.UNAUTHENTICATED: ErrorCode.PERMISSION_DENIED,
    grpc.StatusCode.ABORTED: ErrorCode.CONFLICT,
    grpc.StatusCode.CANCELLED: ErrorCode.UNAVAILABLE,
}


def to_status(error: LongshoreError) -> grpc.StatusCode:
    """The gRPC status of an error."""
    return _STATUS[error.code]


def to_trailers(error: LongshoreError) -> tuple[tuple[str, bytes], ...]:
    """Trailing metadata from which `from_rpc_error` rebuilds the same error."""
    body = {"code": error.code, "details": error.details, "retryable": error.retryable}
    return ((DETAIL_KEY, json.dumps(body).encode()),)


def from_rpc_error(error: grpc.RpcError) -> LongshoreError:
    """The error that the other side raised; for transport faults the nearest one of the tree."""
    message = str(error.details() or error.code())
    trailers: Any = error.trailing_metadata() or ()
    for key, value in trailers:
        if key == DETAIL_KEY:
            body = json.loads(value)
            return from_code(ErrorCode(body["code"]), message, body["details"], body["retryable"])
    code = _CODE.get(error.code())
    if code is None:
        return Internal(f"unexpected gRPC status {error.code()}: {message}")
    retryable = code in (ErrorCode.UNAVAILABLE, ErrorCode.DEADLINE_EXCEEDED)
    return from_code(code, message, {}, retryable)
