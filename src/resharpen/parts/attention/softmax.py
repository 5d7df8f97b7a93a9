"""Standard attention: exp(e_i) / sum_j exp(e_j)."""

from __future__ import annotations

from typing import Any

from resharpen.lazy import Tensor
from resharpen.parts.part import attention, masked_softmax


@attention(softmax=True)
def softmax(e: Tensor, mask: Tensor, p: Any) -> Tensor:
    return masked_softmax(e, mask)
