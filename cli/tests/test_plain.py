"""Proto messages as plain values."""

from __future__ import annotations

from longshore.catalog.v1 import catalog_pb2
from longshore.common.v1 import outcome_pb2
from longshore.controller.v1 import controller_pb2
from longshore.sandbox.v1 import sandbox_pb2
from longshore_cli.plain import enum_name, to_plain


def test_enums_are_spelt_as_the_contracts_do() -> None:
    assert to_plain(catalog_pb2.Task(state=catalog_pb2.TASK_STATE_NEEDS_PROBE))["state"] == "needs_probe"
    assert to_plain(catalog_pb2.Task())["state"] == ""
    assert to_plain(sandbox_pb2.Sandbox(end_reason=sandbox_pb2.END_REASON_OOM))["end_reason"] == "oom"
    assert enum_name(controller_pb2.RunState, controller_pb2.RUN_STATE_INTERRUPTED) == "interrupted"


def test_whole_numbers_stay_numbers_and_zero_is_shown() -> None:
    value = to_plain(controller_pb2.Run(step=2**40))
    assert value["step"] == 2**40
    assert value["total_steps"] == 0


def test_absent_is_null_and_zero_is_zero() -> None:
    assert to_plain(outcome_pb2.Sampling())["seed"] is None
    assert to_plain(outcome_pb2.Sampling(seed=0))["seed"] == 0
    assert to_plain(controller_pb2.Run())["counts"] is None


def test_only_the_chosen_outcome_is_shown() -> None:
    outcome = outcome_pb2.Outcome(scored=outcome_pb2.Scored(reward=1.0, termination=outcome_pb2.TERMINATION_AGENT_DONE))
    assert to_plain(outcome) == {"scored": {"reward": 1.0, "termination": "agent_done"}}


def test_maps_lists_and_bytes() -> None:
    run = controller_pb2.Run()
    run.metrics["loss"] = 0.5
    run.counts.by_failure["engine"] = 2
    value = to_plain(run)
    assert value["metrics"] == {"loss": 0.5}
    assert value["counts"]["by_failure"] == {"engine": 2}
    assert to_plain(catalog_pb2.GetBundleResponse(bundle_tar_zst=b"x")) == {}
    dataset = catalog_pb2.Dataset(splits=[catalog_pb2.Split(name="train", task_digests=["a"])])
    assert to_plain(dataset)["splits"] == [{"name": "train", "task_digests": ["a"]}]
