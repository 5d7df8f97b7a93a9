"""Rotary position embedding: base 10,000, half-split, over the whole head, position 0 at BOS."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BASE = 10_000.0


def angles(length: int, d_head: int) -> NDArray[np.float64]:
    """position * base^(-2i / d_head), [L, d_head / 2]."""
    frequency = BASE ** (-2 * np.arange(d_head // 2) / d_head)
    return np.arange(length)[:, None] * frequency


def rotate(x: Tensor) -> Tensor:
    """The pair (x_i, x_{i + d/2}) of position p turned by p * frequency_i; [..., L, d_head].

    So q_p . k_r depends on the positions through p - r only.
    """
    length, d_head = x.shape[-2:]
    angle_LxK = torch.from_numpy(angles(length, d_head))
    cos, sin = (
        f(angle_LxK).to(x.device, x.dtype) for f in (torch.cos, torch.sin)
    )  # angles in double: positions are large
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
