"""Protos to domain values and back."""

from __future__ import annotations

import base64
import binascii
import json

from longshore.catalog.v1 import catalog_pb2 as pb
from longshore_common.errors import InvalidSpec
from longshore_task_catalog.domain.model import (
    Dataset,
    Evidence,
    Finding,
    Limits,
    ProbeResult,
    Severity,
    Task,
    TaskState,
)

STATES = {
    TaskState.NEEDS_PROBE: pb.TASK_STATE_NEEDS_PROBE,
    TaskState.EVALUABLE: pb.TASK_STATE_EVALUABLE,
    TaskState.TRAINABLE: pb.TASK_STATE_TRAINABLE,
    TaskState.REJECTED: pb.TASK_STATE_REJECTED,
    TaskState.FLAKY: pb.TASK_STATE_FLAKY,
}
SEVERITIES = {Severity.WARNING: pb.SEVERITY_WARNING, Severity.ERROR: pb.SEVERITY_ERROR}


def finding_proto(finding: Finding) -> pb.Finding:
    """A finding for the wire."""
    severity = SEVERITIES[finding.severity]
    return pb.Finding(severity=severity, rule=finding.rule, where=finding.where, message=finding.message)


def evidence_proto(evidence: Evidence) -> pb.Evidence:
    """Evidence for the wire."""
    return pb.Evidence(
        kind=evidence.kind.value,
        rewards=evidence.rewards,
        failures=evidence.failures,
        image_digest=evidence.image_digest,
        recorded_at_ms=evidence.recorded_at_ms,
        detail=evidence.detail,
        token_exact=evidence.token_exact,
    )


def limits_proto(limits: Limits) -> pb.TaskLimits:
    """Limits for the wire."""
    return pb.TaskLimits(
        cpus=limits.cpus,
        memory_mb=limits.memory_mb,
        storage_mb=limits.storage_mb,
        agent_timeout_s=limits.agent_timeout_s,
        verifier_timeout_s=limits.verifier_timeout_s,
        build_timeout_s=limits.build_timeout_s,
    )


def task_proto(task: Task) -> pb.Task:
    """A task for the wire."""
    content = task.content
    return pb.Task(
        digest=content.digest,
        name=content.name,
        instruction=content.instruction,
        environment_digest=content.environment_digest,
        tests_digest=content.tests_digest,
        limits=limits_proto(content.limits),
        metadata_json=json.dumps(content.metadata, ensure_ascii=False, sort_keys=True),
        workdir=content.workdir,
        agent_user=content.agent_user,
        verifier_user=content.verifier_user,
        state=STATES[task.state],
        state_reason=task.state_reason,
        evidence=[evidence_proto(one) for one in task.evidence],
        findings=[finding_proto(one) for one in content.findings],
        imported_at_ms=task.imported_at_ms,
        source=task.source,
        docker_image=content.docker_image,
        network_mode=content.network_mode,
        allowed_hosts=content.allowed_hosts,
    )


def dataset_proto(dataset: Dataset) -> pb.Dataset:
    """A dataset for the wire; splits by name."""
    splits = [pb.Split(name=name, task_digests=tasks) for name, tasks in sorted(dataset.splits.items())]
    return pb.Dataset(name=dataset.name, digest=dataset.digest, splits=splits, frozen_at_ms=dataset.frozen_at_ms)


def probe_proto(result: ProbeResult) -> pb.ProbeTasksResponse:
    """A probe's result for the wire."""
    return pb.ProbeTasksResponse(
        digest=result.digest,
        state=STATES[result.state],
        state_reason=result.state_reason,
        evidence=[evidence_proto(one) for one in result.evidence],
        cached=result.cached,
    )


def page_token(after: tuple[str, str] | None) -> str:
    """Where the next page starts, opaque to callers; empty at the end."""
    return base64.urlsafe_b64encode(json.dumps(after).encode()).decode() if after else ""


def parse_page_token(token: str) -> tuple[str, str] | None:
    """The reverse of `page_token`. Raises InvalidSpec."""
    if not token:
        return None
    try:
        name, digest = json.loads(base64.urlsafe_b64decode(token.encode()))
    except (binascii.Error, ValueError, TypeError) as error:
        raise InvalidSpec(f"page_token {token!r} is not one of ours; start without one", field="page_token") from error
    return str(name), str(digest)
