"""Sparse attention: [e_i/2 - tau]_+^2, tau such that they sum to 1; entmax with alpha = 1.5 (Peters et al., 2019).

With z = e/2 minus its maximum, tau is in [-1, 0): a key below -1 has weight 0, so it can be clamped to -1. The k
largest keys alone would have tau_k = mean - sqrt((1 - k var)/k); the support is the keys with tau_k <= z_k. A Newton
step on sum [z - tau]_+^2 = 1 then removes rounding errors and provides the gradient: its derivative by z is that of
tau, [z - tau]_+ divided by their sum, which is at least 1.
"""

from __future__ import annotations

from typing import Any

from resharpen.lazy import Tensor
from resharpen.parts.part import attention


@attention()
def entmax(e: Tensor, mask: Tensor, p: Any) -> Tensor:
    return masked_entmax(e, mask)


def masked_entmax(e: Tensor, mask: Tensor) -> Tensor:
    """entmax over the keys that are seen; the others have no weight."""
    largest = e.detach().where(mask, -float("inf")).amax(-1, keepdim=True)
    z = ((e - largest) / 2).where(mask, -1.0).clamp(min=-1)
    tau = _threshold(z.detach())
    above = (z.detach() - tau).clamp(min=0)
    tau = tau + ((z - tau).clamp(min=0).square().sum(-1, keepdim=True) - 1) / (2 * above.sum(-1, keepdim=True))
    return (z - tau).clamp(min=0).square().where(mask, 0.0)


def _threshold(z: Tensor) -> Tensor:
    """tau of keys in [-1, 0] whose largest is 0, [..., 1]."""
    import torch

    largest_first = z.sort(dim=-1, descending=True).values
    k = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype, device=z.device)
    mean = largest_first.cumsum(-1) / k
    variance = largest_first.square().cumsum(-1) / k - mean.square()
    tau = mean - ((1 - k * variance) / k).clamp(min=0).sqrt()
    support = (tau <= largest_first).sum(-1, keepdim=True).clamp(min=1)  # none if a model has diverged
    return tau.gather(-1, support - 1)
