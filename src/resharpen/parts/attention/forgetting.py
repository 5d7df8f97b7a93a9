"""softmax(e_ij + sum over j < k <= i of log f_k), f_k = sigma(w_h.x_k + b_h): a gate forgets keys (Lin et al., 2025).

x_k is the input of key k. w is random, b starts at 0, so a gate starts near 1/2, as in the authors' code.
"""

from __future__ import annotations

from typing import Any

from resharpen.lazy import Tensor
from resharpen.parts.parameter import learned
from resharpen.parts.part import attention, masked_softmax


def log_kept(p: Any) -> Tensor:
    """Log of the decay of key j at query i: sum over j < k <= i of log f_k, [M, N, H, L, L]. Above the diagonal, which
    is masked, it is positive."""
    from torch.nn.functional import logsigmoid

    total = logsigmoid(p.x[:, :, None] @ p.w + p.b).cumsum(-2)
    return total - total.mT


@attention(reads_order=True, w=learned("heads", "d", inner=False), b=learned("heads", start=0.0))
def forgetting(e: Tensor, mask: Tensor, p: Any) -> Tensor:
    return masked_softmax(e + log_kept(p), mask)
