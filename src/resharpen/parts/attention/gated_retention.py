"""Weights without a softmax, e_ij prod over j < k <= i of sigma(w_h.x_k + b_h) (Dao and Gu, 2024).

x_k is the input of key k. w is random, and b starts at the decay of `retention`: sigma(b_h) = 1 - 2^(-5-h).
"""

from __future__ import annotations

import math
from typing import Any

from resharpen.lazy import Tensor
from resharpen.parts.attention.forgetting import log_kept
from resharpen.parts.attention.retention import decays
from resharpen.parts.parameter import learned
from resharpen.parts.part import attention


def logits(heads: int) -> list[float]:
    return [math.log(g / (1 - g)) for g in decays(heads)]


@attention(reads_order=True, w=learned("heads", "d", inner=False), b=learned("heads", start=logits))
def gated_retention(e: Tensor, mask: Tensor, p: Any) -> Tensor:
    return e.where(mask, 0.0) * log_kept(p).where(mask, 0.0).exp()
