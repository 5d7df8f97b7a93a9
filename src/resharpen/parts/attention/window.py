"""softmax over the last 16 keys, the query's own included: keys at most 15 tokens back (Beltagy et al., 2020).

Distances beyond the window do not occur, so that no input is too long for positions. Each layer sees another 15 tokens
further back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resharpen.parts.part import attention, masked_softmax

if TYPE_CHECKING:
    from torch import Tensor


@attention(softmax=True, window=16)
def window(e: Tensor, mask: Tensor, p: Any) -> Tensor:
    return masked_softmax(e, mask)
