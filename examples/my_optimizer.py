"""Lion: the sign of an interpolated momentum (Chen et al., 2023)."""

import resharpen as rs


@rs.optimizer(state=("m",), hyperparameters={"peak_learning_rate": rs.Row(1e-6, 1e-3)})
def my_lion(theta, g, state, p):
    m = state["m"]
    direction = (m + p.one_minus_beta1 * (g - m)).sign()
    return theta - p.lr * (direction + p.decay * theta), {"m": m + p.one_minus_beta2 * (g - m)}
