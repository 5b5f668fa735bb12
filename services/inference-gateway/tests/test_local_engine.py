"""The local launcher's failure paths, with a stand-in for Python's module instead of vLLM."""

import json
import sys
from pathlib import Path

import pytest
from gateway_harness import Gateway, running_gateway, settings

from longshore.gateway.v1 import gateway_pb2 as pb
from longshore_common.errors import Internal
from longshore_inference_gateway.clients import local_engine


@pytest.fixture
def broken_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in place of the Python interpreter that says why it cannot start, and ends."""
    script = tmp_path / "broken-engine"
    script.write_text("#!/bin/sh\necho 'ValueError: KV cache does not fit' >&2\nexit 3\n")
    script.chmod(0o755)
    monkeypatch.setattr(local_engine, "sys", _Sys(str(script)))
    return script


class _Sys:
    maxsize = sys.maxsize

    def __init__(self, executable: str) -> None:
        self.executable = executable


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


def test_weights_keep_their_type(model_dir: Path, tmp_path: Path) -> None:
    """vLLM's "auto" turns float32 into bfloat16."""
    assert local_engine._dtype(model_dir) == "float32"
    (tmp_path / "config.json").write_text(json.dumps({"torch_dtype": "torch.bfloat16", "max_position_embeddings": 77}))
    assert local_engine._dtype(tmp_path) == "bfloat16"
    assert local_engine._positions(tmp_path) == 77
