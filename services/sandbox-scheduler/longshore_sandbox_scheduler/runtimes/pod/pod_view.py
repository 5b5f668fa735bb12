"""The part of a pod that sandboxes are judged by. 5,000 whole pods are hundreds of megabytes of dicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_METADATA = (
    "name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "labels", "annotations",
)  # fmt: skip
_SPEC = ("nodeName", "activeDeadlineSeconds")
_STATUS = ("phase", "reason", "message", "podIP", "startTime")
_CONTAINER = ("name", "state", "containerID", "imageID")
_CONDITION = ("type", "status", "reason", "message")

Object = dict[str, Any]


def pod_view(pod: Object) -> Object:
    """A pod as `reasons` and the runtime read it."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    shown = _pick(status, _STATUS)
    for key, fields in (
        ("conditions", _CONDITION),
        ("initContainerStatuses", _CONTAINER),
        ("containerStatuses", _CONTAINER),
    ):
        if status.get(key):
            shown[key] = [_pick(one, fields) for one in status[key]]
    return {"metadata": _pick(pod["metadata"], _METADATA), "spec": _pick(spec, _SPEC), "status": shown}


def _pick(source: Mapping[str, Any], keys: Iterable[str]) -> Object:
    return {key: source[key] for key in keys if key in source}
