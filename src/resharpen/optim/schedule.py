"""What changes from step to step and is the same for all weights of a model, in double precision, for both engines."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from resharpen.optim.hyperparameters import Draws
from resharpen.optim.optimizer import Optimizer

Floats = NDArray[np.float64]


def learning_rate(n: Floats, steps: int, peak: Floats, warmup: Floats, end: Floats) -> Floats:
    """Linear warm-up, then linear decay: the rate of step n = 0 .. T-1, with W warm-up steps and end multiplier e.

    peak * (n+1) / W                                   for n < W
    peak * (1 - (1-e) * (n-W) / max(1, T-1-W))         from then on
    """
    rising = (n + 1) / np.maximum(1, warmup)
    falling = 1 - (1 - end) * (n - warmup) / np.maximum(1, steps - 1 - warmup)
    return peak * np.where(n < warmup, rising, falling)


def ema_weight(n: Floats, lag: Floats, power: Floats) -> Floats:
    """b_n = (rho + n)^-kappa, the weight of theta_{n+1} in the moving average."""
    return (lag + n) ** -power


def step_table(optimizer: Optimizer, draws: Draws, steps: int, first: int, n: int) -> dict[str, Floats]:
    """The numbers of steps first .. first+n-1, each [n, M]: learning rate, the optimizer's columns, EMA weight."""
    step = np.arange(first, first + n, dtype=np.float64)[:, None]
    rate = learning_rate(step, steps, draws["peak_learning_rate"], draws["warmup_steps"], draws["end_multiplier"])
    columns = optimizer.columns(draws, step + 1)
    return {"lr": rate, **columns, "ema_weight": ema_weight(step, draws["ema_lag"], draws["ema_power"])}
