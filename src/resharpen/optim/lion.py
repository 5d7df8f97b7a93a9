"""Lion: the sign of an interpolated momentum (Chen et al., 2023).

theta <- theta - lr lambda theta - lr sign(m + (1-b1) (g - m))          m <- m + (1-b2) (g - m)
"""

from typing import Any

from resharpen.optim.hyperparameters import Row
from resharpen.optim.optimizer import optimizer


@optimizer(state=("m",), hyperparameters={"peak_learning_rate": Row(1e-6, 1e-3)}, elementwise=True)
def lion(theta: Any, g: Any, state: Any, p: Any) -> Any:
    m = state["m"]
    direction = (m + p.one_minus_beta1 * (g - m)).sign()
    return theta - p.lr * p.decay * theta - p.lr * direction, {"m": m + p.one_minus_beta2 * (g - m)}
