"""What logits are worth against the truth, in torch, with a model axis; `metrics.py` has the same for NumPy.

Shapes: M models, P scored places, V tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def total_variation(logits_MxPxV: Tensor, p_star_PxV: Tensor) -> Tensor:
    """TVD = 1/2 sum |softmax(logits) - p*|, [M, P]."""
    return 0.5 * (logits_MxPxV.softmax(-1) - p_star_PxV).abs().sum(-1)


def marked_logit(logits_MxPxV: Tensor, token_P: Tensor) -> Tensor:
    """The logit of one token at each place, [M, P]."""
    return logits_MxPxV.gather(-1, token_P.expand(logits_MxPxV.shape[:-1])[..., None])[..., 0]


def right(logits_MxPxV: Tensor, label_P: Tensor) -> Tensor:
    """1 where the label has the highest logit, else 0, nan without finite logits, [M, P]."""
    found = (logits_MxPxV.argmax(-1) == label_P).to(logits_MxPxV.dtype)
    return found.masked_fill(~logits_MxPxV.isfinite().all(-1), float("nan"))
