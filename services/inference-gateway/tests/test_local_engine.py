"""The local launcher's failure paths, with a program that fails instead of vLLM."""

import functools
from pathlib import Path

import pytest
from gateway_harness import Gateway, running_gateway, settings

from longshore.gateway.v1 import gateway_pb2 as pb
from longshore_common.errors import Internal
from longshore_inference_gateway import bootstrap
from longshore_inference_gateway.clients.vllm_process import Placement


@pytest.fixture
def broken_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in place of vLLM that says why it cannot start, and ends."""
    script = tmp_path / "broken-engine"
    script.write_text("#!/bin/sh\necho 'ValueError: KV cache does not fit' >&2\nexit 3\n")
    script.chmod(0o755)
    monkeypatch.setattr(bootstrap, "Placement", functools.partial(Placement, program=(str(script),)))
    return script


async def test_an_engine_that_does_not_start_is_one_clear_error(
    tmp_path: Path, trajectory_address: str, model_dir: Path, broken_program: Path
) -> None:
    async with running_gateway(settings(tmp_path / "data", trajectory_address)) as gateway:
        with pytest.raises(Internal, match="KV cache does not fit") as caught:
            await gateway.publish(model_dir, 0)
        assert not caught.value.retryable
        assert "status 3" in caught.value.message
        await _nothing_is_half_started(gateway)


async def _nothing_is_half_started(gateway: Gateway) -> None:
    assert (await gateway.stub.ListEngines(pb.ListEnginesRequest())).engines == []
    (policy,) = (await gateway.stub.ListPolicies(pb.ListPoliciesRequest(alias="demo"))).policies
    assert (policy.state, policy.current) == (pb.POLICY_STATE_FAILED, False)
