"""Rotary positions (Su et al., 2021): base 10,000, half-split, over the whole head, position 0 at the first token.

The pair (x_i, x_{i + d/2}) at position r is rotated by r * base^(-2i / d), so q_r . k_s depends only on r - s.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from resharpen.lazy import Tensor
from resharpen.parts.part import positions

if TYPE_CHECKING:
    import torch

BASE = 10_000.0
TABULATED = 2048
"""Size of the cached table, which all shorter sequences use a prefix of."""


@positions(on="queries_keys")
def rope(q: Tensor, k: Tensor, p: Any) -> tuple[Tensor, Tensor]:
    return rotated(q), rotated(k)


def rotated(x: Tensor, base: float = BASE) -> Tensor:
    length, d_head = x.shape[-2:]
    if d_head % 2:
        raise ValueError(f"rope rotates pairs: heads need an even width, not {d_head}")
    return turned(x, *rotation(length, d_head, x.dtype, x.device, base))


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs of features rotated by the angles with this cosine and sine."""
    import torch

    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def angles(length: int, d_head: int, base: float = BASE) -> NDArray[np.float64]:
    """position * base^(-2i / d_head), [L, d_head / 2]; in double, because positions are large."""
    frequency = base ** (-2 * np.arange(d_head // 2) / d_head)
    return np.arange(length)[:, None] * frequency


def rotation(
    length: int, d_head: int, dtype: torch.dtype, device: torch.device, base: float = BASE
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angles."""
    if length > TABULATED:
        return _computed(length, d_head, dtype, device, base)
    cos, sin = _table(d_head, dtype, device, base)
    return cos.narrow(0, 0, length), sin.narrow(0, 0, length)


@lru_cache(maxsize=64)
def _computed(length: int, d_head: int, dtype: torch.dtype, device: torch.device, base: float) -> tuple[Tensor, Tensor]:
    import torch

    table = torch.from_numpy(angles(length, d_head, base))
    cos, sin = (f(table).to(dtype).to(device) for f in (torch.cos, torch.sin))  # not every device has float64
    return cos, sin


def _table(d_head: int, dtype: torch.dtype, device: torch.device, base: float) -> tuple[Tensor, Tensor]:
    return _computed(TABULATED, d_head, dtype, device, base)


# Equivalent to torch.compiler.assume_constant_result, without importing torch here. Otherwise compiled code would
# recompute the table for every rotated number, in single precision.
_table._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
