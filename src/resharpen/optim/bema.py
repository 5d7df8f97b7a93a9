"""BEMA: the bias-corrected moving average of weights (Block and Zhang, 2025), as the paper indexes it.

    theta_EMA_0 = theta_0
    theta_EMA_{n+1} = (1 - b_n) theta_EMA_n + b_n theta_{n+1}         b_n = (rho + n)^-kappa
    theta_BEMA_n = a_n (theta_n - theta_0) + theta_EMA_n              a_n = (rho + n)^-eta

The moving average is advanced inside the engines; the correction is needed only where weights are read.
"""

import numpy as np
from numpy.typing import NDArray


def bema_weights(
    theta: NDArray[np.floating],
    theta_0: NDArray[np.floating],
    ema: NDArray[np.floating],
    n_M: NDArray[np.int64],
    lag_M: NDArray[np.float64],
    power_M: NDArray[np.float64],
) -> NDArray[np.floating]:
    """theta_BEMA after n_M steps, computed in double and returned in the precision of theta; arrays are [M, ...]."""
    a = ((lag_M + n_M) ** -power_M).reshape(-1, *(1,) * (theta.ndim - 1))
    return (a * (theta.astype(np.float64) - theta_0) + ema).astype(theta.dtype)
