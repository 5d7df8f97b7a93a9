"""Muon: an orthogonalized momentum for matrices between hidden features, AdamW for others (Jordan et al., 2024).

    m <- m + (1-b1) (g - m)
    theta <- theta - lr lambda theta - lr sqrt(max(1, out/in)) orthogonal(m + (1-b1) (g - m))

with a separate learning rate, on the common schedule; embeddings, unembeddings and vectors use AdamW with its rate.
"""

from typing import Any

from resharpen.optim.adamw import adamw, corrections
from resharpen.optim.hyperparameters import Row
from resharpen.optim.optimizer import optimizer

QUINTIC = (3.4445, -4.7750, 2.0315)
STEPS = 5
LEAST_NORM = 1e-7


@optimizer(state=("m", "v"), hyperparameters={"muon_learning_rate": Row(1e-4, 1e-1)}, columns=corrections)
def muon(theta: Any, g: Any, state: Any, p: Any) -> Any:
    if not p.inner:
        return adamw.update(theta, g, state, p)
    m = state["m"] + p.one_minus_beta1 * (g - state["m"])
    ahead = m + p.one_minus_beta1 * (g - m)
    rate = p.lr * (p.muon_learning_rate / p.peak_learning_rate)
    n_in, n_out = theta.shape[-2:]
    update = max(1.0, n_out / n_in) ** 0.5 * orthogonal(ahead)
    return theta - rate * p.decay * theta - rate * update, {"m": m, "v": state["v"]}


def orthogonal(x: Any) -> Any:
    """Approximately U V^T of each matrix U S V^T, by Newton-Schulz steps: singular values end in 0.7 .. 1.2."""
    wide = x.shape[-2] <= x.shape[-1]
    y = x if wide else x.mT
    y = y / y.square().sum((-2, -1), keepdim=True).sqrt().clamp(min=LEAST_NORM)
    a, b, c = QUINTIC
    for _ in range(STEPS):
        gram = y @ y.mT
        y = a * y + (b * gram + c * (gram @ gram)) @ y
    return y if wide else y.mT
