"""ALiBi: e_ij - m_h (i - j), m_h = 2^(-8h/H) for the heads h = 1 .. H (Press et al., 2022).

If H is not a power of two, the authors interpolate slopes from the nearest powers of two instead.
"""

from __future__ import annotations

from typing import Any

from resharpen.lazy import Tensor
from resharpen.parts.part import positions


@positions(on="logits")
def alibi(e: Tensor, p: Any) -> Tensor:
    return sloped(e, slopes(e))


def slopes(e: Tensor) -> Tensor:
    """m_h of every head."""
    import torch

    heads = e.shape[-3]
    return 2 ** (-8 * torch.arange(1, heads + 1, dtype=e.dtype, device=e.device) / heads)


def sloped(e: Tensor, slope_H: Tensor, position: Tensor | None = None) -> Tensor:
    """e_ij - m_h (i - j), or with other positions of the tokens, [..., L], instead of 0, 1, 2, ..."""
    import torch

    if position is None:
        position = torch.arange(e.shape[-1], dtype=e.dtype, device=e.device)
    return e - slope_H[:, None, None] * (position[..., :, None] - position[..., None, :])
