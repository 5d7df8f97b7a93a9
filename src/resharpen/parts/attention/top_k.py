"""softmax over the 8 largest logits of a query, all others have weight 0 (Gupta et al., 2021).

Keys equal to the eighth are also kept.
"""

from __future__ import annotations

from typing import Any

from resharpen.lazy import Tensor
from resharpen.parts.part import attention, masked_softmax

KEPT = 8


@attention()
def top_k(e: Tensor, mask: Tensor, p: Any) -> Tensor:
    largest = e.detach().where(mask, -float("inf")).topk(min(KEPT, e.shape[-1]), dim=-1).values
    return masked_softmax(e, mask & (e >= largest[..., -1:]))
