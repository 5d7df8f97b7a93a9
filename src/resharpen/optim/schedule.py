"""What changes from step to step and is the same for all weights of a model, in double precision, for both engines."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resharpen.optim.hyperparameters import Draws

Floats = NDArray[np.float64]


def learning_rate(n: Floats, steps: int, peak: Floats, warmup: Floats, end: Floats) -> Floats:
    """Linear warm-up, then linear decay: the rate of step n = 0 .. T-1, with W warm-up steps and end multiplier e.

    peak * (n+1) / W                                   for n < W
    peak * (1 - (1-e) * (n-W) / max(1, T-1-W))         from then on
    """
    rising = (n + 1) / np.maximum(1, warmup)
    falling = 1 - (1 - end) * (n - warmup) / np.maximum(1, steps - 1 - warmup)
    return peak * np.where(n < warmup, rising, falling)


def one_minus_power(one_minus_beta: Floats, t: Floats) -> Floats:
    """1 - beta^t, exact also where beta is close to one."""
    with np.errstate(divide="ignore"):
        return -np.expm1(t * np.log1p(-one_minus_beta))


def ema_weight(n: Floats, lag: Floats, power: Floats) -> Floats:
    """b_n = (rho + n)^-kappa, the weight of theta_{n+1} in the moving average."""
    return (lag + n) ** -power


@dataclass(frozen=True)
class StepTable:
    """The numbers of steps first .. first+n-1, each [n, M]."""

    learning_rate: Floats
    correction1: Floats
    """1 / (1 - beta1^t), t = step + 1."""
    correction2: Floats
    """1 / (1 - beta2^t)."""
    ema_weight: Floats


def step_table(draws: Draws, steps: int, first: int, n: int) -> StepTable:
    step = np.arange(first, first + n, dtype=np.float64)[:, None]
    return StepTable(
        learning_rate(step, steps, draws["peak_learning_rate"], draws["warmup_steps"], draws["end_multiplier"]),
        1 / one_minus_power(draws["one_minus_beta1"], step + 1),
        1 / one_minus_power(draws["one_minus_beta2"], step + 1),
        ema_weight(step, draws["ema_lag"], draws["ema_power"]),
    )
