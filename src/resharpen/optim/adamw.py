"""AdamW (Loshchilov and Hutter, 2019); every hyperparameter is one number per model.

m <- m + (1-b1) (g - m)          v <- v + (1-b2) (g^2 - v)
theta <- theta - lr lambda theta - lr (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + epsilon)
"""

from typing import Any

import numpy as np

from resharpen.optim.hyperparameters import Draws
from resharpen.optim.optimizer import Floats, optimizer


def one_minus_power(one_minus_beta: Floats, t: Floats) -> Floats:
    """1 - beta^t, accurate for beta close to one."""
    with np.errstate(divide="ignore"):
        return -np.expm1(t * np.log1p(-one_minus_beta))


def corrections(draws: Draws, t: Floats) -> dict[str, Floats]:
    """1 / (1 - beta^t) of both moments."""
    return {f"correction{i}": 1 / one_minus_power(draws[f"one_minus_beta{i}"], t) for i in (1, 2)}


@optimizer(state=("m", "v"), columns=corrections, elementwise=True)
def adamw(theta: Any, g: Any, state: Any, p: Any) -> Any:
    m = state["m"] + p.one_minus_beta1 * (g - state["m"])
    v = state["v"] + p.one_minus_beta2 * (g.square() - state["v"])
    update = m * p.correction1 / ((v * p.correction2).sqrt() + p.adam_epsilon)
    return theta - p.lr * p.decay * theta - p.lr * update, {"m": m, "v": v}
