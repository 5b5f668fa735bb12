"""The port between training loops and whatever holds the weights. DeepSpeed and plain torch implement it."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from torch import Tensor

from longshore_trainer.domain.batch import Example


@dataclass(frozen=True)
class ForwardInputs:
    """A right-padded micro-batch. Causal attention never sees the padding behind a token: no mask is needed."""

    input_ids_B_T: Tensor
    positions_N: Tensor
    """Flat indices into (B, T) of the tokens before the trained ones, example by example."""
    targets_N: Tensor
    """The trained tokens."""


@dataclass(frozen=True)
class ForwardOutputs:
    """Of the trained tokens, shape (N,)."""

    logprobs_N: Tensor
    entropy_N: Tensor
    """Of the distribution each token was drawn from, nats; carries a gradient only when asked for."""


class UpdateEngine(Protocol):
    """Holds a model and its optimizer on every rank. Losses are shares of a sum over all ranks."""

    def forward(self, inputs: ForwardInputs) -> ForwardOutputs:
        """With gradient unless torch's gradient mode is off."""

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Adds the gradient of this rank's share; `last` marks the step's last micro-batch, where ranks reduce."""

    def step(self, learning_rate: float) -> float:
        """Clips, applies and clears the gradient; returns its global norm before clipping."""

    def reference(self) -> AbstractContextManager[None]:
        """Within it, `forward` is that of the run's starting policy."""

    def save_state(self, folder: Path) -> None:
        """Writes trained weights, optimizer and random state; every rank calls it with the same folder."""

    def load_state(self, folder: Path) -> None:
        """Reads what `save_state` wrote."""

    def save_policy(self, folder: Path) -> None:
        """Writes the policy as an engine loads it: a PEFT adapter, or a Hugging Face folder. Rank 0 only writes."""

    def weights_digest(self) -> str:
        """Digest of the trained weights on this rank."""


def collate(examples: Sequence[Example], pad_id: int = 0) -> ForwardInputs:
    """A micro-batch from examples, in their order. None: one padding token and nothing to train."""
    import torch

    width = max((example.length for example in examples), default=1)
    ids_B_T = np.full((max(1, len(examples)), width), pad_id, dtype=np.int64)
    positions: list[np.ndarray] = [np.zeros(0, dtype=np.int64)]
    for row, example in enumerate(examples):
        ids_B_T[row, : example.length] = example.token_ids_T
        positions.append(row * width + np.flatnonzero(example.loss_mask_T) - 1)
    positions_N = np.concatenate(positions)
    return ForwardInputs(
        input_ids_B_T=torch.from_numpy(ids_B_T),
        positions_N=torch.from_numpy(positions_N),
        targets_N=torch.from_numpy(ids_B_T.reshape(-1)[positions_N + 1] if positions_N.size else positions_N),
    )
