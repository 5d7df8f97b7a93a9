"""softmax over the last 16 keys, including the query's own: keys at most 15 tokens back (Beltagy et al., 2020).

Distances beyond the window do not occur, so position encodings never see untrained distances. Each layer extends the
receptive field by 15 tokens.
"""

from __future__ import annotations

from typing import Any

from resharpen.lazy import Tensor
from resharpen.parts.part import attention, masked_softmax


@attention(softmax=True, window=16)
def window(e: Tensor, mask: Tensor, p: Any) -> Tensor:
    return masked_softmax(e, mask)
