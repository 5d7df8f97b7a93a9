"""Philox as a custom torch operator: the same numbers as `streams.py`, on any device, one stream per model.

It is a custom operator because torch.compile would otherwise inline its ten rounds at every use of a number.

Shapes: M models, N sequences.
"""

from __future__ import annotations

import torch
from torch import Tensor

LOW = 0xFFFFFFFF


@torch.library.custom_op("resharpen::uniform_words", mutates_args=())
def uniform_words(key_Mx2: Tensor, row_N: Tensor, k0: int, k1: int, a: int, b: int, c: int) -> Tensor:
    """Numbers k / 2^24 in [0, 1), exact in single precision, [M, N, a, b, c]; the four words of a block are neighbors
    along the last axis."""
    index = [torch.arange(size, device=key_Mx2.device) for size in (a, b, (c + 3) // 4)]
    key0, key1 = ((key_Mx2[:, i] ^ k)[:, None, None, None, None] for i, k in enumerate((k0, k1)))
    words = philox(key0, key1, index[2], row_N[:, None, None, None], index[0][:, None, None], index[1][:, None])
    return (torch.stack(words, dim=-1).flatten(-2)[..., :c] >> 8).float() * 2.0**-24


@uniform_words.register_fake
def _(key_Mx2: Tensor, row_N: Tensor, k0: int, k1: int, a: int, b: int, c: int) -> Tensor:
    return key_Mx2.new_empty((key_Mx2.shape[0], row_N.shape[0], a, b, c), dtype=torch.float32)


def philox(k0: Tensor, k1: Tensor, c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor) -> tuple[Tensor, ...]:
    """Ten rounds of Philox4x32 on 32-bit words in int64. 2^32 is subtracted from the multipliers, so that no product
    overflows."""
    for _ in range(10):
        product0, product1 = c0 * (0xD2511F53 - 2**32), c2 * (0xCD9E8D57 - 2**32)
        c0, c1, c2, c3 = (
            (c2 + (product1 >> 32)) ^ c1 ^ k0,
            product1 & LOW,
            (c0 + (product0 >> 32)) ^ c3 ^ k1,
            product0 & LOW,
        )
        k0, k1 = (k0 + 0x9E3779B9) & LOW, (k1 + 0xBB67AE85) & LOW
    return c0, c1, c2, c3
