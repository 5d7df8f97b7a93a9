"""e_ij + b_h[bucket(i - j)], 32 learned biases per head, from 0 (Raffel et al., 2020).

Distances below 16 have one bucket each; from there to 128 buckets grow geometrically, and the last one contains all
larger distances. T5 shares its biases among layers; here every layer has its own.
"""

from __future__ import annotations

import math
from typing import Any

from resharpen.lazy import Tensor
from resharpen.parts.parameter import learned
from resharpen.parts.part import positions

BUCKETS, FARTHEST = 32, 128
EXACT = BUCKETS // 2
"""Distances with a bucket of their own."""


@positions(on="logits", b=learned("heads", BUCKETS, start=0.0))
def t5(e: Tensor, p: Any) -> Tensor:
    import torch

    distance_L = torch.arange(e.shape[-1], dtype=e.dtype, device=e.device)
    return e + by_distance(p.b.squeeze(-1).index_select(-1, bucket(distance_L)))


def bucket(distance: Tensor) -> Tensor:
    """>>> import torch
    >>> bucket(torch.tensor([0.0, 15, 16, 18, 19, 64, 113, 1000])).tolist()
    [0, 15, 16, 16, 17, 26, 31, 31]
    """
    import torch

    octaves = torch.log(distance.clamp(min=EXACT) / EXACT) / math.log(FARTHEST / EXACT)
    far = (EXACT + octaves * (BUCKETS - EXACT)).clamp(max=BUCKETS - 1)
    return torch.where(distance < EXACT, distance, far).long()


def by_distance(bias: Tensor) -> Tensor:
    """Biases of queries i and keys j <= i, [..., L, L], from those of the distances i - j = 0, 1, ..., [..., L]."""
    import torch

    length = bias.shape[-1]
    unseen = bias[..., :1].expand(*bias.shape[:-1], length - 1)
    return torch.cat([bias.flip(-1), unseen], dim=-1).unfold(-1, length, 1).flip(-2)
