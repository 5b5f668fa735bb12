"""What the Kubernetes API answers when it does not do what was asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from longshore_common.errors import (
    AlreadyExists,
    Conflict,
    InvalidSpec,
    LongshoreError,
    NotFound,
    PermissionDenied,
    Unavailable,
)

_PASSING = frozenset({0, 408, 429, 500, 502, 503, 504})


class KubeError(Unavailable):
    """A call that failed. status 0: there was no answer, and whether the call acted is unknown unless `unsent`.

    Attributes:
        status: HTTP status.
        reason: machine word of the API's Status object ("AlreadyExists", "Expired"), or of the fault.
        status_details: `details` of the Status object.
        unsent: the call certainly did not act, for it never reached the server.
        retry_after_s: when the server asked to come again, in seconds; 0: it did not say.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        status_details: Mapping[str, Any] | None = None,
        *,
        unsent: bool = False,
        retry_after_s: float = 0.0,
    ) -> None:
        details = {"kube_status": str(status), "kube_reason": reason}
        super().__init__(message, details=details, retryable=status in _PASSING)
        self.status = status
        self.reason = reason
        self.status_details: dict[str, Any] = dict(status_details or {})
        self.unsent = unsent
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.status, self.reason, self.message, self.status_details))


class Expired(KubeError):
    """A resourceVersion or page that the server no longer has: list again."""


def from_status(status: int, body: bytes, what: str, retry_after: str = "") -> KubeError:
    """The error of an answer; what: the call in words, e.g. "create pods/a"."""
    try:
        answer = json.loads(body)
    except ValueError:
        answer = {}
    if not isinstance(answer, dict) or answer.get("kind") != "Status":
        text = body[:200].decode(errors="replace").strip() or f"HTTP {status}"
        return KubeError(status, f"HTTP{status}", f"Kubernetes API: {what}: {text}")
    details = answer.get("details") or {}
    seconds = retry_after or str(details.get("retryAfterSeconds") or "")
    reason = str(answer.get("reason") or f"HTTP{status}")
    kind = Expired if status == 410 or reason in ("Expired", "Gone") else KubeError
    return kind(
        status,
        reason,
        f"Kubernetes API: {what}: {answer.get('message') or answer.get('reason') or status}",
        details,
        retry_after_s=float(seconds) if seconds.isdecimal() else 0.0,
    )


def as_domain_error(error: KubeError) -> LongshoreError:
    """The error of the one tree that says the same."""
    kinds: dict[int, type[LongshoreError]] = {403: PermissionDenied, 404: NotFound, 422: InvalidSpec}
    if error.status == 409:
        kind: type[LongshoreError] | None = AlreadyExists if error.reason == "AlreadyExists" else Conflict
    else:
        kind = kinds.get(error.status)
    return error if kind is None else kind(error.message, details=error.details)
