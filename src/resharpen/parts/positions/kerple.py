"""e_ij - r1 log(1 + r2 (i - j)), r1 and r2 positive, one of each per head (Chi et al., 2022).

Here their logarithms are learned; the authors' code learns r1 and r2 and clamps them at 0.01. That code initializes r1
from U[0, 2] and r2 from U[0, 1]; here r1 starts at (2h - 1)/H for the heads h = 1 .. H, and r2 at 1/2.
"""

from __future__ import annotations

import math
from typing import Any

from resharpen.lazy import Tensor
from resharpen.parts.parameter import learned
from resharpen.parts.part import positions
from resharpen.parts.positions.t5 import by_distance


def _spread(heads: int) -> list[float]:
    return [math.log((2 * h - 1) / heads) for h in range(1, heads + 1)]


@positions(on="logits", log_r1=learned("heads", start=_spread), log_r2=learned("heads", start=math.log(1 / 2)))
def kerple(e: Tensor, p: Any) -> Tensor:
    import torch

    distance_L = torch.arange(e.shape[-1], dtype=e.dtype, device=e.device)
    r1, r2 = p.log_r1.squeeze(-1).exp(), p.log_r2.squeeze(-1).exp()
    return e + by_distance(-r1 * (r2 * distance_L).log1p())
