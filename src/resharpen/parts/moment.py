"""A step of training as parts see it: its number, and random numbers that depend on what they are for and nothing else.

A random number is a pure function of (seed, setting, draw, step), of the part and where it stands in the network, and
of its place in a tensor: the sequence's number in the minibatch and the indices of the other axes. So it does not
depend on other models, on padding, on the pieces that a minibatch is computed in, or on whether a run was resumed.

    key of a model and step    Philox of key(seed, setting, "parts"), draw and step
    one number                 Philox of that key xor hash(name), counter (index of the last axis // 4, row, i, j)

Shapes: M models, N sequences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from resharpen import streams
from resharpen.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

LOW = 0xFFFFFFFF
MOST_AXES = 3
"""Of what is drawn per sequence: they and the row are the counter."""


class Moment(NamedTuple):
    t: Tensor
    """The number of the step, 1, 2, ..., as a tensor without axes: what is compiled serves every step."""
    steps: int
    key_Mx2: Tensor
    """Two 32-bit words per model, as int64."""
    row_N: Tensor | None = None
    """Where the sequences stand in the minibatch; None for all of them in order."""


def uniforms(moment: Moment, name: str, n: int | None, shape: tuple[int, ...]) -> Tensor:
    """Numbers in [0, 1) with 24 random bits, [M, n, *shape]; for n = None those of all sequences, [M, 1, *shape]."""
    import torch

    if len(shape) > MOST_AXES:
        raise UserError(f"p.uniform{shape}: at most {MOST_AXES} axes, besides those of models and sequences")
    device, axes = moment.key_Mx2.device, (*(1,) * (MOST_AXES - len(shape)), *shape)
    whole = [torch.arange(size, device=device) for size in (*axes[:2], (axes[2] + 3) // 4)]
    if n is None:
        row, name = torch.zeros(1, dtype=torch.int64, device=device), f"{name} of all sequences"
    else:
        row = torch.arange(n, device=device) if moment.row_N is None else moment.row_N
    hashed = _key(name)
    k0, k1 = ((moment.key_Mx2[:, i] ^ hashed[i])[:, None, None, None, None] for i in (0, 1))
    blocks = _philox(k0, k1, whole[2], row[:, None, None, None], whole[0][:, None, None], whole[1][:, None])
    words = torch.stack(blocks, dim=-1).flatten(-2).narrow(-1, 0, axes[2])
    return (words >> 8).to(moment.t.dtype).mul(2.0**-24).view(*words.shape[:2], *shape)


def _key(name: str) -> streams.Key:
    return streams.key(0, name)


_key._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]  # torch.compile cannot follow a hash


def _philox(k0: Tensor, k1: Tensor, c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor) -> tuple[Tensor, ...]:
    """Ten rounds of Philox4x32, as `streams.philox`, on 32-bit words in int64. The multipliers are taken less 2^32, so
    that no product overflows."""
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
