"""Gradients of the real engines: splits over micro-batches and ranks change nothing, padding changes nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

RANK_SCRIPT = """
import json, sys
from pathlib import Path
from longshore_trainer.domain.job import Lora
from longshore_trainer.domain.presets import resolve
from longshore_trainer.domain.vocabulary import JobKind
from longshore_trainer.engine import ranks as group
from longshore_trainer.engine.deepspeed_engine import DeepSpeedEngine
from longshore_trainer.engine.torch_engine import TorchEngine
from longshore_trainer.engine.model import load_policy
from longshore_trainer.training.stopwatch import Stopwatch
from longshore_trainer.training.update import policy_update
import torch, numpy as np
from longshore_trainer.domain.batch import Example

lengths, model_dir, variants, out = json.loads(Path(sys.argv[1]).read_text())
torch.set_num_threads(1)
ranks = group.join()
results = {}
for name, zero, overrides in variants:
    hp = resolve("grpo", JobKind.RL, overrides)
    policy = load_policy(Path(model_dir), Lora(rank=4, alpha=8), hp, 3)
    engine = TorchEngine(policy, hp, ranks) if zero is None else DeepSpeedEngine(policy, hp, ranks, zero)
    rng = np.random.default_rng(0)
    examples = []
    for attempt, (prompt, sampled) in enumerate(lengths):
        mask = np.array([0] * prompt + [1] * sampled, dtype=bool)
        n = mask.size
        examples.append(Example(attempt, rng.integers(0, 300, n).astype(np.int32), mask,
            np.where(mask, -5.5 + rng.normal(0, .3, n), 0).astype(np.float32),
            np.where(mask, rng.normal(), 0).astype(np.float32)))
    metrics = policy_update(engine, examples, hp, ranks, hp.learning_rate, (1, 1), Stopwatch())
    ranks.check_equal(engine.weights_digest(), "weights")
    weights = {n: w.detach().double().flatten().tolist() for n, w in policy.trainable().items()}
    results[name] = {"metrics": metrics, "weights": weights}
if ranks.is_main:
    Path(out).write_text(json.dumps(results))
group.leave()
"""

# One token against eleven, prompts of any length: what uneven ranks and micro-batches trip over.
LENGTHS = [[5, 5], [9, 1], [30, 11], [3, 2], [17, 7], [4, 4], [12, 1]]
# With Adam's usual epsilon, rounding is divided by itself where a gradient is near zero.
OVERRIDES = {"adam_epsilon": 1e-4, "learning_rate": 1e-3, "epochs": 2, "minibatch_size": 4, "kl_coefficient": 0.05}


Variant = tuple[str, int | None, dict[str, Any]]
SEQ = {"aggregation": "seq_mean_token_mean"}
ONE_RANK: list[Variant] = [
    ("whole", None, {}),
    ("micro-1", 0, {"micro_batch_tokens": 1}),
    ("micro-64", 0, {"micro_batch_tokens": 64}),
    ("seq", None, SEQ),
]
TWO_RANKS: list[Variant] = [
    ("torch", None, {"micro_batch_tokens": 40}),
    ("zero-0", 0, {"micro_batch_tokens": 40}),
    ("zero-1", 1, {"micro_batch_tokens": 40}),
    ("zero-2", 2, {"micro_batch_tokens": 40}),
    ("seq-2", 0, SEQ | {"micro_batch_tokens": 20}),
]


def update(folder: Path, model_dir: Path, ranks: int, variants: list[Variant]) -> dict[str, dict[str, Any]]:
    """Weights and metrics of a policy update per variant, in fresh processes."""
    given, out, script = folder / f"{ranks}.in.json", folder / f"{ranks}.json", folder / "ranks.py"
    script.write_text(RANK_SCRIPT)
    listed = [(name, zero, OVERRIDES | overrides) for name, zero, overrides in variants]
    given.write_text(json.dumps([LENGTHS, str(model_dir), listed, str(out)]))
    launcher = [sys.executable] if ranks == 1 else [sys.executable, *torchrun(ranks)]
    environment = os.environ | {"DS_ACCELERATOR": "cpu", "OMP_WAIT_POLICY": "PASSIVE", "TORCHDYNAMO_DISABLE": "1"}
    command = [*launcher, str(script), str(given)]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    result: dict[str, dict[str, Any]] = json.loads(out.read_text())
    return result


def torchrun(ranks: int) -> list[str]:
    return ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]


def assert_same(one: dict[str, Any], other: dict[str, Any], tolerance: float = 1e-6) -> None:
    for name, weights in one["weights"].items():
        assert np.abs(np.array(weights) - np.array(other["weights"][name])).max() <= tolerance, name
    for name, value in one["metrics"].items():
        assert other["metrics"][name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("updates")
    return update(folder, model_dir, 1, ONE_RANK) | update(folder, model_dir, 2, TWO_RANKS)


@pytest.mark.parametrize("name", ["micro-1", "micro-64"])
def test_micro_batches_do_not_change_the_update_verl_5625(results: dict[str, Any], name: str) -> None:
    """verl #5625/#7321, SkyRL #1296: one example per micro-batch, or a few, or all."""
    assert_same(results["whole"], results[name])


@pytest.mark.parametrize("name", ["torch", "zero-0", "zero-1", "zero-2"])
def test_two_gloo_ranks_equal_one_prime_rl_2358(results: dict[str, Any], name: str) -> None:
    """prime-rl #2358/#2562: uneven token counts per rank; also with ranks that run out of examples."""
    assert_same(results["whole"], results[name])


def test_other_aggregations_are_global_too(results: dict[str, Any]) -> None:
    assert_same(results["seq"], results["seq-2"])
    assert results["seq"]["weights"] != results["whole"]["weights"]
