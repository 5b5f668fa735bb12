"""Proto messages to domain records and back."""

from __future__ import annotations

from longshore.sandbox.v1 import sandbox_pb2
from longshore_common.errors import InvalidSpec
from longshore_sandbox_scheduler.domain.model import (
    Demand,
    EndReason,
    LaunchType,
    Limits,
    Network,
    NetworkClass,
    Sandbox,
    SandboxState,
)
from longshore_sandbox_scheduler.domain.pools import PoolState

_STATES = {
    SandboxState.STARTING: sandbox_pb2.SANDBOX_STATE_STARTING,
    SandboxState.READY: sandbox_pb2.SANDBOX_STATE_READY,
    SandboxState.ENDED: sandbox_pb2.SANDBOX_STATE_ENDED,
}
_REASONS: dict[EndReason, sandbox_pb2.EndReason.ValueType] = {
    EndReason.NONE: sandbox_pb2.END_REASON_UNSPECIFIED,
    **{
        reason: sandbox_pb2.EndReason.Value(f"END_REASON_{reason.name}")
        for reason in EndReason
        if reason is not EndReason.NONE
    },
}

_NETWORKS = {
    NetworkClass.NO_NETWORK: sandbox_pb2.NETWORK_CLASS_NO_NETWORK,
    NetworkClass.GATEWAY_ONLY: sandbox_pb2.NETWORK_CLASS_GATEWAY_ONLY,
    NetworkClass.ALLOWLIST: sandbox_pb2.NETWORK_CLASS_ALLOWLIST,
    NetworkClass.PUBLIC: sandbox_pb2.NETWORK_CLASS_PUBLIC,
}
_NETWORK_OF = {message: kind for kind, message in _NETWORKS.items()}
_LAUNCHES = {LaunchType.COLD: sandbox_pb2.LAUNCH_TYPE_COLD, LaunchType.WARM: sandbox_pb2.LAUNCH_TYPE_WARM}


def network_from(message: sandbox_pb2.Network) -> Network | None:
    """A network as asked for; None: not said. Raises InvalidSpec."""
    if message.network_class == sandbox_pb2.NETWORK_CLASS_UNSPECIFIED and not (message.cidrs or message.hosts):
        return None
    kind = _NETWORK_OF.get(message.network_class)
    if kind is None:
        raise InvalidSpec(f"network_class {message.network_class} does not exist", field="network.network_class")
    return Network(kind, tuple(message.cidrs), tuple(message.hosts))


def demand_from(message: sandbox_pb2.Demand) -> Demand:
    """A demand as announced. Raises InvalidSpec."""
    return Demand(message.task_digest, message.count, limits_from(message.limits), network_from(message.network))


def pool_to(pool: PoolState) -> sandbox_pb2.Pool:
    """The message of a pool."""
    template = pool.template
    return sandbox_pb2.Pool(
        template=template.key,
        image=template.image.reference or template.image.digest,
        network_class=_NETWORKS[template.network.kind],
        limits=limits_to(template.limits),
        ready=pool.ready,
        starting=pool.starting,
        target=pool.target,
        demand=pool.demand,
        hits=pool.hits,
        misses=pool.misses,
    )


def limits_to(limits: Limits) -> sandbox_pb2.Limits:
    """The message of limits."""
    return sandbox_pb2.Limits(
        cpus=limits.cpus,
        memory_mb=limits.memory_mb,
        storage_mb=limits.storage_mb,
        max_processes=limits.max_processes,
        max_file_mb=limits.max_file_mb,
    )


def limits_from(message: sandbox_pb2.Limits) -> Limits:
    """Limits as asked for; 0 is "not said"."""
    return Limits(
        cpus=message.cpus,
        memory_mb=message.memory_mb,
        storage_mb=message.storage_mb,
        max_processes=message.max_processes,
        max_file_mb=message.max_file_mb,
    )


def sandbox_to(sandbox: Sandbox) -> sandbox_pb2.Sandbox:
    """The message of a record."""
    return sandbox_pb2.Sandbox(
        sandbox_id=sandbox.sandbox_id,
        state=_STATES[sandbox.state],
        end_reason=_REASONS[sandbox.end_reason],
        end_detail=sandbox.end_detail,
        task_digest=sandbox.task_digest,
        image_digest=sandbox.image_digest,
        run_id=sandbox.run_id,
        attempt_id=sandbox.attempt_id,
        created_at_ms=sandbox.created_at_ms,
        expires_at_ms=sandbox.expires_at_ms,
        limits=limits_to(sandbox.limits),
        enforcement=sandbox_pb2.LimitEnforcement(by_limit=dict(sandbox.enforcement)),
        runtime=sandbox.runtime,
        network_class=_NETWORKS[sandbox.network],
        launch_type=_LAUNCHES[sandbox.launch],
        node=sandbox.node,
        instance=sandbox.instance,
        deadline_at_ms=sandbox.deadline_at_ms,
    )
