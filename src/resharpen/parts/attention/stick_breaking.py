"""a_ij = sigma(e_ij) prod_{j<k<i} (1 - sigma(e_ik)), j < i: the nearest key takes its share first (Tan et al., 2024).

The remainder is dropped: weights sum to at most 1, and the first position has no attention output. Products are
computed as sums of logarithms, so that a thousand keys neither underflow nor lose their gradient.
"""

from __future__ import annotations

from typing import Any

from resharpen.lazy import Tensor
from resharpen.parts.part import attention


@attention(orders=True)
def stick_breaking(e: Tensor, mask: Tensor, p: Any) -> Tensor:
    from torch.nn.functional import logsigmoid, pad

    later = mask.flip(-1).cumsum(-1).flip(-1) - mask.long()  # number of visible keys after this one
    earlier = mask & (later > 0)  # the last visible key is the query's own
    left = (
        logsigmoid(-e).where(earlier, 0.0).flip(-1).cumsum(-1).flip(-1)
    )  # log of the remaining stick, including this key's break
    before = pad(left[..., 1:], (0, 1))
    return (logsigmoid(e) + before).exp().where(earlier, 0.0)
