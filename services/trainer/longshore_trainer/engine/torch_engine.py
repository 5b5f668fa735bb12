"""Plain torch: AdamW and an all-reduce. For one or few ranks, and where DeepSpeed cannot run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from longshore_trainer.domain.hyperparameters import OptimizerHyperparameters
from longshore_trainer.engine.base import ForwardInputs, ForwardOutputs
from longshore_trainer.engine.model import Policy
from longshore_trainer.engine.policy_module import PolicyModule
from longshore_trainer.engine.ranks import Ranks, weights_digest


def make_adamw(policy: Policy, hp: OptimizerHyperparameters) -> torch.optim.AdamW:
    """torch's own fused AdamW over the trained parameters; needs no compiler."""
    return torch.optim.AdamW(
        list(policy.trainable().values()),
        lr=hp.learning_rate,
        betas=(hp.adam_beta1, hp.adam_beta2),
        eps=hp.adam_epsilon,
        weight_decay=hp.weight_decay,
        fused=True,
    )


class TorchEngine:
    """UpdateEngine without DeepSpeed. Every rank holds everything."""

    def __init__(self, policy: Policy, hp: OptimizerHyperparameters, ranks: Ranks) -> None:
        self._policy, self._hp, self._ranks = policy, hp, ranks
        self._module: PolicyModule = policy.module
        self._optimizer = make_adamw(policy, hp)

    def forward(self, inputs: ForwardInputs) -> ForwardOutputs:
        return ForwardOutputs(*self._module(inputs.input_ids_B_T, inputs.positions_N, inputs.targets_N))

    def backward(self, loss: Tensor, *, last: bool) -> None:
        loss.backward()
        if last and self._ranks.size > 1:
            self._reduce()

    def _reduce(self) -> None:
        weights = list(self._policy.trainable().values())
        for weight in weights:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        flat = self._ranks.sum(torch.cat([weight.grad.flatten() for weight in weights if weight.grad is not None]))
        for weight, part in zip(weights, flat.split([weight.numel() for weight in weights]), strict=True):
            weight.grad = part.view_as(weight)

    def step(self, learning_rate: float) -> float:
        limit = self._hp.grad_clip or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(list(self._policy.trainable().values()), limit)
        set_learning_rate(self._optimizer, learning_rate)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return float(norm)

    @contextmanager
    def reference(self) -> Iterator[None]:
        with self._policy.reference() as module:
            self._module = module
            try:
                yield
            finally:
                self._module = self._policy.module

    def save_state(self, folder: Path) -> None:
        if not self._ranks.is_main:
            return
        save_file(
            {name: w.detach().contiguous() for name, w in self._policy.trainable().items()},
            folder / "weights.safetensors",
        )
        torch.save(self._optimizer.state_dict(), folder / "optimizer.pt")
        torch.save(torch.get_rng_state(), folder / "rng.pt")

    def load_state(self, folder: Path) -> None:
        stored = load_file(folder / "weights.safetensors")
        with torch.no_grad():
            for name, weight in self._policy.trainable().items():
                weight.copy_(stored[name])
        self._optimizer.load_state_dict(torch.load(folder / "optimizer.pt", weights_only=True))
        torch.set_rng_state(torch.load(folder / "rng.pt", weights_only=True))

    def save_policy(self, folder: Path) -> None:
        if self._ranks.is_main:
            self._policy.save(folder)

    def weights_digest(self) -> str:
        return weights_digest(self._policy.trainable())


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Sets it on every parameter group."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
