"""What goes into a per-token loss and what comes out."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class TokenLossInputs:
    """Arrays of one shape (B, T) or (N,)."""

    logprobs: Tensor
    """Of the policy being trained; carries the gradient."""
    behaviour_logprobs: Tensor
    """Of the policy that sampled; NaN where unknown: the ratio there is exactly 1."""
    advantages: Tensor
    mask: Tensor
    """True on trained tokens; the other arrays are never read elsewhere."""


@dataclass(frozen=True)
class TokenLoss:
    """Loss and clip indicator per token; both 0 where the mask is off."""

    loss: Tensor
    clipped: Tensor
