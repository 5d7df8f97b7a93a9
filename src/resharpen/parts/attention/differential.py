"""softmax(e_1) - l softmax(e_2) for both heads of a pair, one learned l per pair, from 0.8 (Ye et al., 2024).

The authors write l as a difference of two exponentials and normalize what each pair gathers: the placement `heads-out`
has a norm there.
"""

from __future__ import annotations

from typing import Any

from resharpen.lazy import Tensor
from resharpen.parts.parameter import learned
from resharpen.parts.part import attention, masked_softmax


@attention(l=learned("pairs", start=0.8))
def differential(e: Tensor, mask: Tensor, p: Any) -> Tensor:
    first, second = masked_softmax(e, mask).unflatten(2, (-1, 2)).unbind(3)
    return (first - p.l * second).repeat_interleave(2, dim=2)
