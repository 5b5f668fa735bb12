"""Errors as OpenAI's clients expect them."""

from __future__ import annotations

import json

from longshore_common.errors import LongshoreError, QuotaExceeded
from longshore_common.http_status import to_http
from longshore_inference_gateway.domain.models import Reason

_STATUS = {
    Reason.INVALID_TOKEN: 401,
    Reason.INVALID_REQUEST: 400,
    Reason.UNSUPPORTED_PARAMETER: 400,
    Reason.CONTEXT_LENGTH_EXCEEDED: 400,
    Reason.SESSION_TOKEN_LIMIT: 400,
    Reason.SESSION_FENCED: 409,
    Reason.QUEUE_FULL: 429,
    Reason.ENGINE_UNAVAILABLE: 503,
    Reason.CAPTURE_FAILED: 503,
}
_TYPES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
RETRY_AFTER_S = "1"


def status_of(error: LongshoreError) -> int:
    """HTTP status."""
    reason = error.details.get("reason")
    if reason in _STATUS:
        return _STATUS[Reason(reason)]
    return to_http(error)


def body_of(error: LongshoreError) -> bytes:
    """The JSON body: {"error": {message, type, param, code}}."""
    status = status_of(error)
    value = {
        "message": error.message,
        "type": _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error"),
        "param": error.details.get("field"),
        "code": error.details.get("reason") or error.code.value,
    }
    return json.dumps({"error": value}).encode()


def headers_of(error: LongshoreError) -> list[tuple[bytes, bytes]]:
    """Headers beside the content type: Retry-After where trying again helps."""
    if isinstance(error, QuotaExceeded) and error.details.get("reason") == Reason.QUEUE_FULL:
        return [(b"retry-after", RETRY_AFTER_S.encode())]
    if status_of(error) == 503 and error.retryable:
        return [(b"retry-after", RETRY_AFTER_S.encode())]
    return []
