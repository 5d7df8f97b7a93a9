"""softmax(log(n) e) over n keys (Chiang and Cholak, 2022); position biases are added unscaled."""

from __future__ import annotations

from typing import Any

from resharpen.lazy import Tensor
from resharpen.parts.part import attention, masked_softmax


@attention(softmax=True, scale=lambda p: p.n.log())
def log_n(e: Tensor, mask: Tensor, p: Any) -> Tensor:
    return masked_softmax(e, mask)
