"""Group-relative advantages (DeepSeekMath)."""

import numpy as np
from numpy.typing import NDArray

EPSILON = 1e-6
"""Added to the standard deviation, as verl does."""


def grpo(rewards_G: NDArray[np.float64], *, std: bool = True) -> NDArray[np.float64]:
    """(r - mean) / (std + 1e-6) with ddof 1, shape (G,), G >= 2; with `std` off only r - mean (Dr. GRPO)."""
    advantages_G: NDArray[np.float64] = rewards_G - rewards_G.mean()
    if std:
        advantages_G /= rewards_G.std(ddof=1) + EPSILON
    return advantages_G
