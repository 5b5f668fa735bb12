"""Failure names between protos and the domain."""

from longshore.common.v1 import outcome_pb2
from longshore_rollout_worker.domain.ports import Sampling
from longshore_rollout_worker.domain.vocabulary import Failure, Termination


def failure_proto(failure: Failure, evidence: str) -> outcome_pb2.Failed:
    """A typed failure as a message."""
    return outcome_pb2.Failed(failure=outcome_pb2.Failure.Value(f"FAILURE_{failure.name}"), evidence=evidence)


def failure_from(failed: outcome_pb2.Failed) -> Failure:
    """The failure's name. Raises ValueError for a value that this worker does not know."""
    return Failure(outcome_pb2.Failure.Name(failed.failure).removeprefix("FAILURE_").lower())


def termination_proto(termination: Termination) -> "outcome_pb2.Termination.ValueType":
    """A termination's proto value."""
    return outcome_pb2.Termination.Value(f"TERMINATION_{termination.name}")


def sampling_proto(sampling: Sampling, with_seed: bool) -> outcome_pb2.Sampling:
    """Sampling as a message; an identity carries no seed."""
    message = outcome_pb2.Sampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_tokens=sampling.max_tokens,
    )
    if with_seed and sampling.seed is not None:
        message.seed = sampling.seed
    return message
