"""RMSNorm with one epsilon a model, and a residual block with its norms in place.

Shapes: M models, D width; activations are [M, ..., D], gains [M, D], epsilons [M].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from resharpen.models.placement import Placement


def rms_norm(x: Tensor, gain_MxD: Tensor, epsilon_M: Tensor) -> Tensor:
    """x * (mean(x^2) + epsilon)^(-1/2) * gain."""
    ones = (1,) * (x.ndim - 2)
    epsilon = epsilon_M.view(-1, *ones, 1)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * gain_MxD.view(len(x), *ones, -1)


class Norms:
    """The norms of a placement, bound to a model's parameters: a norm that the placement lacks is the identity."""

    def __init__(self, placement: Placement, theta: Mapping[str, Tensor], epsilon_M: Tensor):
        self._placement, self._theta, self._epsilon_M = placement, theta, epsilon_M

    def __call__(self, position: str, x: Tensor, block: str = "") -> Tensor:
        if not getattr(self._placement, position):
            return x
        return rms_norm(x, self._theta[f"{block}g_{position}"], self._epsilon_M)

    def residual_block(self, x: Tensor, update: Callable[[Tensor], Tensor], block: str = "") -> Tensor:
        y = self("block_out", update(self("block_in", x, block)), block)
        return self("residual", x + y, block)
