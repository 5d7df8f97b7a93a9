"""Weights without a softmax, e_ij g_h^(i-j), g_h = 1 - 2^(-5-h) for the heads h = 0, 1, ... (Sun et al., 2023)."""

from __future__ import annotations

from typing import Any

from resharpen.lazy import Tensor
from resharpen.parts.part import attention


def decays(heads: int) -> list[float]:
    """g_h of every head."""
    return [1 - 2.0 ** (-5 - h) for h in range(heads)]


@attention(reads_order=True)
def retention(e: Tensor, mask: Tensor, p: Any) -> Tensor:
    import torch

    position = torch.arange(e.shape[-1], dtype=e.dtype, device=e.device)
    g_Hx1x1 = torch.tensor(decays(e.shape[2]), dtype=e.dtype, device=e.device)[:, None, None]
    return (e * g_Hx1x1 ** (position[:, None] - position).clamp(min=0)).where(mask, 0.0)
