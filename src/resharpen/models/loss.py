"""The one loss: the mean negative log likelihood of the targets, for each model.

Shapes: M models, P places that count, V tokens.
"""

from __future__ import annotations

from resharpen.lazy import Tensor


def total_nll(logits: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    """Negative log likelihood summed over the places of the mask, [M], from logits [M, ..., V] and targets [...]."""
    from torch.nn import functional

    each = targets.expand(logits.shape[:-1])
    nll = functional.cross_entropy(logits.flatten(0, -2), each.flatten(), reduction="none").view(each.shape)
    return nll.where(mask, 0.0).flatten(1).sum(1)


def counted_nll(logits_MxPxV: Tensor, counts_PxV: Tensor) -> Tensor:
    """The same where places with equal inputs are merged, and it is counted how often each target followed; [M]."""
    log_p_MxVxP = logits_MxPxV.mT.log_softmax(1)
    return -(log_p_MxVxP * counts_PxV.T).sum(1).sum(1)
