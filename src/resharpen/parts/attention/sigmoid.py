"""sigma(e - log n) over n keys, elementwise: weights need not sum to 1 (Ramapuram et al., 2024)."""

from __future__ import annotations

from typing import Any

from resharpen.lazy import Tensor
from resharpen.parts.part import attention


@attention()
def sigmoid(e: Tensor, mask: Tensor, p: Any) -> Tensor:
    return (e - p.n.log()).sigmoid().where(mask, 0.0)
