"""The first half of the heads has ALiBi with slopes 1/h, the others no positions (Vasylenko et al., 2025)."""

from __future__ import annotations

from typing import Any

from resharpen.lazy import Tensor
from resharpen.parts.part import positions
from resharpen.parts.positions.alibi import sloped


@positions(on="logits")
def nape(e: Tensor, p: Any) -> Tensor:
    import torch

    half = e.shape[-3] // 2
    slope_H = 1 / torch.arange(1, half + 1, dtype=e.dtype, device=e.device)
    return sloped(e, torch.cat([slope_H, torch.zeros_like(slope_H)]))
