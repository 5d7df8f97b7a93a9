"""exp(e_i) / (exp(s) + sum_j exp(e_j)), one learned s per head, from 0 (Miller, 2023; gpt-oss, 2025).

Weights sum to less than 1: the sink has weight but no value.
"""

from __future__ import annotations

from typing import Any

from resharpen.lazy import Tensor
from resharpen.parts.parameter import learned
from resharpen.parts.part import attention, masked_softmax


@attention(s=learned("heads", start=0.0))
def sink(e: Tensor, mask: Tensor, p: Any) -> Tensor:
    import torch

    with_sink = torch.cat([e, p.s.expand(*e.shape[:-1], 1)], dim=-1)
    seen = torch.cat([mask, mask.new_ones(*mask.shape[:-1], 1)], dim=-1)
    return masked_softmax(with_sink, seen)[..., :-1]
