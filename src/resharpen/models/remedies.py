"""Remedies for dispersed attention: functions from attention logits to attention weights.

A remedy takes logits [..., n], -inf where an item is masked out, and the number of items attended to, [...] or one
that broadcasts to it, and gives weights [..., n] that are zero where the logit is -inf. That is all a model asks of
it, so one of your own is a few lines:

    def sharper(logits, n_items):
        return (2 * logits).softmax(-1)

    model.logits(theta, items, placement, epsilon_M, attend=sharper)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Remedy = Callable[["Tensor", "Tensor"], "Tensor"]

TEMPERATURE = (-0.037, 0.481, -2.3, 4.917, -1.791)
"""The polynomial of Velickovic et al. (2024) from attention entropy in nats to inverse temperature, highest power
first; it holds from an entropy of 0.5 up, and never makes attention flatter."""
ENTROPY_FROM = 0.5


def softmax(logits: Tensor, n_items: Tensor) -> Tensor:
    """exp(e_i) / sum_j exp(e_j): attention as it is."""
    return logits.softmax(-1)


def adaptive_temperature(logits: Tensor, n_items: Tensor) -> Tensor:
    """softmax(beta(H) e) with H the entropy of softmax(e); for evaluation only (Velickovic et al., 2024)."""
    beta = inverse_temperature(entropy(logits.softmax(-1)))
    return (logits * beta[..., None]).softmax(-1)


def log_n(logits: Tensor, n_items: Tensor) -> Tensor:
    """softmax(log(n) e) over n items, in training too (Chiang and Cholak, 2022).

    A single item has logits times zero: masked ones stay masked.
    """
    import torch

    scaled = logits * torch.as_tensor(n_items, device=logits.device).to(logits.dtype).log()[..., None]
    return scaled.masked_fill(logits.isneginf(), -torch.inf).softmax(-1)


TRAINABLE = ("softmax", "log-n")
"""Those to train with; adaptive temperature is a way to read a trained model."""
REMEDIES: dict[str, Remedy] = {"softmax": softmax, "adaptive-temperature": adaptive_temperature, "log-n": log_n}


def inverse_temperature(entropy: Tensor) -> Tensor:
    """beta = max(polynomial(H), 1) where H > 0.5, else 1.

    >>> import torch
    >>> [round(x, 3) for x in inverse_temperature(torch.tensor([0.4, 1.0, 2.0, 6.0])).tolist()]
    [1.0, 1.27, 2.099, 1.0]
    """
    import torch

    beta = torch.zeros_like(entropy)
    for coefficient in TEMPERATURE:
        beta = beta * entropy + coefficient
    return torch.where(entropy > ENTROPY_FROM, beta.clamp(min=1), 1.0)


def entropy(weights: Tensor) -> Tensor:
    """-sum_i w_i log w_i in nats over the last axis; a weight of zero adds nothing."""
    import torch

    return -torch.special.xlogy(weights, weights).sum(-1)
