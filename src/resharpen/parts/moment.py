"""A training step as parts see it: its number, and random numbers that depend only on their purpose.

A random number is a pure function of (seed, setting, draw, step), of the part and its place in the network, and of its
index in a tensor: the number of the sequence in the minibatch and the indices of the other axes. So it does not depend
on other models, on padding, on how a minibatch is split, or on whether a run was resumed.

    key of a model and step    Philox of key(seed, setting, "parts"), draw and step
    one number                 Philox of that key xor hash(name), counter (index of the last axis // 4, row, i, j)

Shapes: M models, N sequences, B sequences of the whole minibatch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from resharpen import streams
from resharpen.errors import UserError
from resharpen.lazy import Tensor

MOST_AXES = 3
"""Limit on axes per sequence: together with the row they are the counter."""


def step_keys(seed: int, setting: str, draw_M: ArrayLike, steps: ArrayLike) -> NDArray[np.uint32]:
    """The keys of every model at some steps, [S, M, 2]."""
    return streams.words(streams.key(seed, setting, "parts"), 2, draw_M, np.asarray(steps)[:, None])


class Moment(NamedTuple):
    t: Tensor
    """The current step, 1, 2, ..., as a tensor without axes, so that compiled code works for every step."""
    steps: int
    key_Mx2: Tensor
    """Two 32-bit words per model, as int64."""
    row_N: Tensor | None = None
    """Rows of the sequences in the minibatch; None for all of them in order."""
    length_B: Tensor | None = None
    """Tokens of each sequence of the minibatch; None if it has no sequences."""

    @property
    def length_N(self) -> Tensor | None:
        """Tokens of each of the sequences, without padding."""
        return self.length_B if self.row_N is None or self.length_B is None else self.length_B[self.row_N]


def uniforms(moment: Moment, name: str, n: int | None, shape: tuple[int, ...]) -> Tensor:
    """Numbers in [0, 1) with 24 random bits, [M, n, *shape]; for n = None those of all sequences, [M, 1, *shape]."""
    import torch

    if len(shape) > MOST_AXES:
        raise UserError(
            f"p.uniform{shape}: at most {MOST_AXES} axes are allowed, besides those of models and sequences"
        )
    from resharpen.parts.philox import uniform_words

    if n is None:
        row, name = torch.zeros(1, dtype=torch.int64, device=moment.t.device), f"{name} of all sequences"
    else:
        row = torch.arange(n, device=moment.t.device) if moment.row_N is None else moment.row_N
    axes = (*(1,) * (MOST_AXES - len(shape)), *shape)
    found = uniform_words(moment.key_Mx2, row, *_key(name), *axes)
    return found.to(moment.t.dtype).view(*found.shape[:2], *shape)


def words_per_sequence(keys_SxMx2: NDArray[np.uint32], name: str, n: int) -> NDArray[np.uint32]:
    """`uniforms` without further axes, times 2^24, of several steps, [S, M, n]: for engines without torch."""
    key_SxMx1x2 = named_keys(keys_SxMx2, name)[..., None, :]
    return streams.philox((key_SxMx1x2[..., 0], key_SxMx1x2[..., 1]), (0, np.arange(n), 0, 0))[..., 0] >> np.uint32(8)


def named_keys(keys_SxMx2: NDArray[np.uint32], name: str) -> NDArray[np.uint32]:
    """The key of the random numbers of one use, [S, M, 2]."""
    return keys_SxMx2 ^ np.array(_key(name), np.uint32)


def _key(name: str) -> streams.Key:
    return streams.key(0, name)


_key._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]  # torch.compile cannot follow a hash
