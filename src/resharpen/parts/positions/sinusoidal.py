"""E[t] + s PE(i), sines and cosines of position i = 0, 1, ...; s learned, from 0.02 (Vaswani et al., 2017).

PE(i)[2j] = sin(i / 10000^(2j/d)), PE(i)[2j + 1] = cos of the same. s starts at the standard deviation of an embedding.
"""

from __future__ import annotations

from typing import Any

from resharpen.lazy import Tensor
from resharpen.parts.parameter import learned
from resharpen.parts.part import positions
from resharpen.parts.positions.rope import rotation


@positions(on="embedding", s=learned(start=0.02))
def sinusoidal(x: Tensor, p: Any) -> Tensor:
    import torch

    length, d = x.shape[-2:]
    cos, sin = rotation(length, d + d % 2, x.dtype, x.device)
    return x + p.s * torch.stack([sin, cos], dim=-1).flatten(-2)[:, :d]
