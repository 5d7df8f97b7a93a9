"""sigma(e - log n) over n keys, elementwise: weights need not sum to 1 (Ramapuram et al., 2024)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resharpen.parts.part import attention

if TYPE_CHECKING:
    from torch import Tensor


@attention()
def sigmoid(e: Tensor, mask: Tensor, p: Any) -> Tensor:
    return (e - p.n.log()).sigmoid().where(mask, 0.0)
