"""softmax(beta(H) e) with H the entropy of softmax(e); models train with softmax (Velickovic et al., 2025).

beta is their polynomial in the entropy in nats where that is above 0.5, and never below 1: attention only gets sharper.
"""

from __future__ import annotations

from typing import Any

from resharpen.lazy import Tensor
from resharpen.parts.part import attention, masked_softmax

POLYNOMIAL = (-0.037, 0.481, -2.3, 4.917, -1.791)
"""Highest power first."""
ENTROPY_FROM = 0.5


@attention(trains=False)
def adaptive_temperature(e: Tensor, mask: Tensor, p: Any) -> Tensor:
    return masked_softmax(e * inverse_temperature(entropy(masked_softmax(e, mask)))[..., None], mask)


def inverse_temperature(entropy: Tensor) -> Tensor:
    """beta = max(polynomial(H), 1) where H > 0.5, else 1.

    >>> import torch
    >>> [round(x, 3) for x in inverse_temperature(torch.tensor([0.4, 1.0, 2.0, 6.0])).tolist()]
    [1.0, 1.27, 2.099, 1.0]
    """
    beta = entropy * 0
    for coefficient in POLYNOMIAL:
        beta = beta * entropy + coefficient
    return beta.clamp(min=1).where(entropy > ENTROPY_FROM, 1.0)


def entropy(weights: Tensor) -> Tensor:
    """-sum_i w_i log w_i in nats over the last axis; a weight of zero adds nothing."""
    return -weights.xlogy(weights).sum(-1)
