"""ALiBi: e_ij - m_h (i - j), m_h = 2^(-8h/H) for the heads h = 1 .. H (Press et al., 2022).

Where H is no power of two the authors take slopes of the powers around it instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resharpen.parts.part import positions

if TYPE_CHECKING:
    from torch import Tensor


@positions(on="logits")
def alibi(e: Tensor, p: Any) -> Tensor:
    import torch

    heads = e.shape[-3]
    return sloped(e, 2 ** (-8 * torch.arange(1, heads + 1, dtype=e.dtype, device=e.device) / heads))


def sloped(e: Tensor, slope_H: Tensor) -> Tensor:
    """e_ij - m_h (i - j)."""
    import torch

    position = torch.arange(e.shape[-1], dtype=e.dtype, device=e.device)
    return e - slope_H[:, None, None] * (position[:, None] - position)
