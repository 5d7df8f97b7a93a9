"""Gradient descent with momentum (Polyak, 1964), with decoupled weight decay as in AdamW.

m <- b1 m + g          theta <- theta - lr lambda theta - lr m
"""

from typing import Any

from resharpen.optim.hyperparameters import Row
from resharpen.optim.optimizer import optimizer


@optimizer(state=("m",), hyperparameters={"peak_learning_rate": Row(1e-3, 10.0)}, elementwise=True)
def sgd(theta: Any, g: Any, state: Any, p: Any) -> Any:
    m = state["m"] + g - p.one_minus_beta1 * state["m"]
    return theta - p.lr * p.decay * theta - p.lr * m, {"m": m}
