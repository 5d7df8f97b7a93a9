"""Scalable softmax: softmax(s log(n) e) over n keys, one learned s per head (Nakanishi, 2025).

Position biases are added unscaled.
"""

from __future__ import annotations

from typing import Any

from resharpen.lazy import Tensor
from resharpen.parts.parameter import learned
from resharpen.parts.part import attention, masked_softmax


@attention(softmax=True, scale=lambda p: p.s * p.n.log(), s=learned("heads", start=1.0))
def ssmax(e: Tensor, mask: Tensor, p: Any) -> Tensor:
    return masked_softmax(e, mask)
