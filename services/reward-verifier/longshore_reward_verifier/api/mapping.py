"""Verdicts to protos."""

from longshore.common.v1 import outcome_pb2
from longshore.verifier.v1 import verifier_pb2
from longshore_reward_verifier.domain.outcome import Graded, GradeFailed, TamperResistance, Verdict

_RESISTANCE = {
    TamperResistance.WEAK: outcome_pb2.TAMPER_RESISTANCE_WEAK,
    TamperResistance.STRONG: outcome_pb2.TAMPER_RESISTANCE_STRONG,
}


def response(verdict: Verdict, seconds: float) -> verifier_pb2.VerifyResponse:
    """A verdict as the RPC's answer; seconds is the wall time of the whole Verify."""
    answer = verifier_pb2.VerifyResponse(agent_broke_verifier=verdict.agent_broke_verifier, seconds=seconds)
    if isinstance(verdict.result, Graded):
        answer.reward.CopyFrom(reward(verdict.result))
    else:
        answer.failed.CopyFrom(failed(verdict.result))
    if verdict.first_failure is not None:
        answer.first_failure.CopyFrom(failed(verdict.first_failure))
    return answer


def failed(failure: GradeFailed) -> outcome_pb2.Failed:
    """A typed failure."""
    value = outcome_pb2.Failure.Value(f"FAILURE_{failure.failure.name}")
    return outcome_pb2.Failed(failure=value, evidence=failure.evidence)


def reward(graded: Graded) -> outcome_pb2.Reward:
    """A reward with its provenance."""
    return outcome_pb2.Reward(
        reward=graded.reward,
        keys=graded.keys,
        file_name=graded.file_name,
        file_digest=graded.file_digest,
        tests_digest=graded.tests_digest,
        image_digest=graded.image_digest,
        exit_status=graded.run.exit_status,
        output_head=graded.run.output_head,
        output_tail=graded.run.output_tail,
        output_truncated=graded.run.output_truncated,
        ctrf_json=graded.ctrf_json,
        duration_s=graded.run.duration_s,
        tamper_resistance=_RESISTANCE[graded.tamper_resistance],
        regraded=graded.regraded,
    )
