"""Leave-one-out advantages (Ahmadian et al.)."""

import numpy as np
from numpy.typing import NDArray


def rloo(rewards_G: NDArray[np.float64]) -> NDArray[np.float64]:
    """r - mean of the other rewards of the group, shape (G,), G >= 2."""
    count = rewards_G.size
    leave_one_out_G: NDArray[np.float64] = (rewards_G - rewards_G.mean()) * count / (count - 1)
    return leave_one_out_G
