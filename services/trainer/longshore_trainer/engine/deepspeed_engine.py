"""DeepSpeed with ZeRO 0, 1 or 2 on torch's own AdamW, gradients accumulated under our own global denominators."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longshore_common.errors import Internal
from longshore_trainer.domain.hyperparameters import OptimizerHyperparameters
from longshore_trainer.engine.base import ForwardInputs, ForwardOutputs
from longshore_trainer.engine.model import Policy
from longshore_trainer.engine.ranks import Ranks, weights_digest
from longshore_trainer.engine.torch_engine import make_adamw, set_learning_rate

TAG = "state"


def import_deepspeed() -> Any:
    """DeepSpeed on the CPU, without its compiled shared-memory collective (gloo does it; building takes 40 s)."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed
    import deepspeed.ops

    # A dict in place of the probe: probing every op runs compilers, and on the CPU we need none of them.
    deepspeed.ops.__compatible_ops__ = {}
    return deepspeed


class DeepSpeedEngine:
    """UpdateEngine over deepspeed.initialize. Gradients are sums of the ranks' shares, not averages."""

    def __init__(self, policy: Policy, hp: OptimizerHyperparameters, ranks: Ranks, zero_stage: int) -> None:
        self._policy, self._hp, self._ranks, self._zero_stage = policy, hp, ranks, zero_stage
        deepspeed = import_deepspeed()
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
        self._engine, self._optimizer, _, _ = deepspeed.initialize(
            model=policy.module, optimizer=make_adamw(policy, hp), config=deepspeed_config(hp, ranks.size, zero_stage)
        )
        # initialize() switches to training mode; there is no dropout here, and evaluation mode keeps it that way.
        self._engine.eval()
        self._module: Any = self._engine

    def forward(self, inputs: ForwardInputs) -> ForwardOutputs:
        return ForwardOutputs(*self._module(inputs.input_ids_B_T, inputs.positions_N, inputs.targets_N))

    def backward(self, loss: Tensor, *, last: bool) -> None:
        self._engine.set_gradient_accumulation_boundary(last)
        # DeepSpeed averages over ranks; our losses are shares of one sum.
        self._engine.backward(loss * self._ranks.size, scale_wrt_gas=False)

    def step(self, learning_rate: float) -> float:
        set_learning_rate(self._optimizer, learning_rate)
        norm = None
        if self._zero_stage == 0:
            limit = self._hp.grad_clip or float("inf")
            norm = torch.nn.utils.clip_grad_norm_(list(self._policy.trainable().values()), limit)
        self._engine.step()
        norm = self._engine.get_global_grad_norm() if norm is None else norm
        if norm is None:
            raise Internal("DeepSpeed reported no gradient norm")
        return float(norm)

    @contextmanager
    def reference(self) -> Iterator[None]:
        with self._policy.reference() as module:
            self._module = module
            try:
                yield
            finally:
                self._module = self._engine

    def save_state(self, folder: Path) -> None:
        self._engine.save_checkpoint(str(folder), tag=TAG, save_latest=False, exclude_frozen_parameters=True)
        torch.save(torch.get_rng_state(), folder / f"rng-{self._ranks.rank}.pt")
        self._ranks.barrier()

    def load_state(self, folder: Path) -> None:
        path, _ = self._engine.load_checkpoint(str(folder), tag=TAG, load_module_strict=False)
        if path is None:
            raise Internal(f"DeepSpeed found no state in {folder}")
        torch.set_rng_state(torch.load(folder / f"rng-{self._ranks.rank}.pt", weights_only=True))

    def save_policy(self, folder: Path) -> None:
        if self._ranks.is_main:
            self._policy.save(folder)

    def weights_digest(self) -> str:
        return weights_digest(self._policy.trainable())


def deepspeed_config(hp: OptimizerHyperparameters, ranks: int, zero_stage: int) -> dict[str, Any]:
    """Batch sizes are nominal: micro-batches and their boundary are ours."""
    return {
        "train_batch_size": ranks,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": hp.grad_clip if zero_stage else 0.0,
        "zero_optimization": {"stage": zero_stage, "overlap_comm": False},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
        "checkpoint": {"tag_validation": "Ignore"},
    }
