"""Rows to domain values and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from longshore_task_catalog.domain.model import Dataset, Evidence, EvidenceKind, Task, TaskContent, TaskState

_CONTENT: TypeAdapter[TaskContent] = TypeAdapter(TaskContent)


def task_row(task: Task) -> dict[str, Any]:
    """The row of a task."""
    return {
        "digest": task.digest,
        "name": task.content.name,
        "content": _CONTENT.dump_json(task.content).decode(),
        "state": task.state.value,
        "state_reason": task.state_reason,
        "imported_at_ms": task.imported_at_ms,
        "source": task.source,
    }


def to_task(row: Any, evidence: Sequence[Evidence]) -> Task:
    """The task of a row and its evidence, oldest first."""
    return Task(
        content=_CONTENT.validate_json(row.content),
        state=TaskState(row.state),
        state_reason=row.state_reason,
        evidence=tuple(evidence),
        imported_at_ms=row.imported_at_ms,
        source=row.source,
    )


def evidence_row(digest: str, evidence: Evidence) -> dict[str, Any]:
    """The row of one piece of evidence."""
    return {
        "task_digest": digest,
        "kind": evidence.kind.value,
        "rewards": json.dumps(evidence.rewards),
        "failures": json.dumps(evidence.failures),
        "image_digest": evidence.image_digest,
        "recorded_at_ms": evidence.recorded_at_ms,
        "detail": evidence.detail,
        "token_exact": evidence.token_exact,
    }


def to_evidence(row: Any) -> Evidence:
    """The evidence of a row."""
    return Evidence(
        kind=EvidenceKind(row.kind),
        rewards=tuple(json.loads(row.rewards)),
        failures=tuple(json.loads(row.failures)),
        image_digest=row.image_digest,
        recorded_at_ms=row.recorded_at_ms,
        detail=row.detail,
        token_exact=bool(row.token_exact),
    )


def dataset_row(dataset: Dataset) -> dict[str, Any]:
    """The row of a dataset."""
    return {
        "name": dataset.name,
        "digest": dataset.digest,
        "splits": json.dumps(dataset.splits),
        "frozen_at_ms": dataset.frozen_at_ms,
    }


def to_dataset(row: Any) -> Dataset:
    """The dataset of a row."""
    splits: Mapping[str, list[str]] = json.loads(row.splits)
    return Dataset(row.name, row.digest, {name: tuple(tasks) for name, tasks in splits.items()}, row.frozen_at_ms)
