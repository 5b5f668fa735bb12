"""Protos and domain values, both ways."""

from __future__ import annotations

from longshore.common.v1 import outcome_pb2
from longshore.gateway.v1 import gateway_pb2 as pb
from longshore_common.errors import InvalidSpec
from longshore_inference_gateway.domain.engine_pool import EngineSlot
from longshore_inference_gateway.domain.models import ModelIdentity, PolicyKind, PolicyState, PolicyVersion, Sampling

_KINDS = {pb.POLICY_KIND_LORA: PolicyKind.LORA, pb.POLICY_KIND_FULL: PolicyKind.FULL}
_KINDS_BACK = {value: key for key, value in _KINDS.items()}
_STATES = {
    PolicyState.PUBLISHING: pb.POLICY_STATE_PUBLISHING,
    PolicyState.SERVING: pb.POLICY_STATE_SERVING,
    PolicyState.UNLOADED: pb.POLICY_STATE_UNLOADED,
    PolicyState.FAILED: pb.POLICY_STATE_FAILED,
}


def kind(value: pb.PolicyKind.ValueType) -> PolicyKind:
    """Raises InvalidSpec when unspecified."""
    found = _KINDS.get(value)
    if found is None:
        raise InvalidSpec("kind must be LORA or FULL", field="kind")
    return found


def sampling(message: outcome_pb2.Sampling) -> Sampling:
    """top_p 0 means 1."""
    seed = message.seed if message.HasField("seed") else None
    return Sampling(message.temperature, message.top_p or 1.0, message.top_k, message.max_tokens, seed)


def identity_to_proto(identity: ModelIdentity) -> pb.ModelIdentity:
    """The message of an identity."""
    return pb.ModelIdentity(
        base_digest=identity.base_digest,
        tokenizer_digest=identity.tokenizer_digest,
        template_digest=identity.template_digest,
    )


def policy_to_proto(policy: PolicyVersion, current: int | None) -> pb.Policy:
    """The message of a version; current: where its alias points."""
    return pb.Policy(
        alias=policy.alias,
        version=policy.version,
        kind=_KINDS_BACK[policy.kind],
        state=_STATES[policy.state],
        uri=policy.uri,
        digest=policy.digest,
        served_name=policy.served_name,
        published_at_ms=policy.published_at_ms,
        incarnation=policy.incarnation,
        current=policy.version == current,
        model_identity=identity_to_proto(policy.identity),
    )


def engine_to_proto(slot: EngineSlot, names: list[str]) -> pb.Engine:
    """The message of an engine."""
    handle = slot.handle
    return pb.Engine(
        engine_id=slot.engine_id or f"engine-slot-{slot.index}",
        address=handle.address if handle is not None else "",
        state=slot.state.value,
        detail=slot.detail,
        served_names=names if handle is not None else [],
        pid=handle.pid if handle is not None else 0,
    )
