"""A minibatch in pieces: sequences of about one length together, cut to what is real, so that little is computed for
padding and a piece stays in the caches.

Shapes: N sequences, L positions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from resharpen.tasks import Batch

PER_PIECE, PER_PAIR = 60.0, 0.004
"""What a piece costs by itself, and a pair of positions that attend, in units of a position; measured roughly."""
POSITIONS_AT_ONCE = 2048
"""A piece with more positions than this is split further."""
FIXED_POSITIONS = 512
"""Positions of a piece of fixed shape, about."""


def pieces(batch: Batch) -> Iterator[Batch]:
    """The same sequences, shortest first. Padding is at the end of a row; what has another shape stays whole."""
    mask = batch.mask
    if mask.ndim != 2 or not isinstance(batch.inputs, np.ndarray):
        yield batch
        return
    length_N = lengths(mask)
    order_N = np.argsort(length_N, kind="stable")
    begin = 0
    for end in cuts(length_N[order_N]):
        longest = int(length_N[order_N[end - 1]])
        rows = max(1, POSITIONS_AT_ONCE // max(1, longest))
        for first in range(begin, end, rows):
            chosen = order_N[first : min(first + rows, end)]
            if longest:
                yield Batch(batch.inputs[chosen, :longest], batch.targets[chosen, :longest], mask[chosen, :longest])
        begin = end


def fixed_pieces(batch: Batch, longest: int) -> Iterator[Batch]:
    """The same sequences, longest first, in pieces of a few shapes that can be compiled for, whatever the minibatch:
    a number of rows for every length of a short list, which ends with the longest. What is left over is padding."""
    length_N = lengths(batch.mask)
    order_N = np.argsort(-length_N, kind="stable")
    order_N = order_N[: np.count_nonzero(length_N)]
    while len(order_N):
        real = int(length_N[order_N[0]])
        length = max(real, min(listed(real), longest))
        rows = 2 ** max(0, round(math.log2(FIXED_POSITIONS / length)))
        chosen, order_N = order_N[:rows], order_N[rows:]
        fill = (0, rows - len(chosen)), (0, max(0, length - batch.mask.shape[1]))
        inputs, targets, mask = (np.pad(x[chosen, :length], fill) for x in (batch.inputs, batch.targets, batch.mask))
        yield Batch(inputs, targets, mask)  # pyright: ignore[reportArgumentType]


def listed(length: int) -> int:
    """The next length of 8, 16, 24, 32, 48, 64, 96, 128, 192, ...: few, because each takes its time to compile.

    >>> [listed(n) for n in (3, 8, 17, 33, 64, 65, 100, 129)]
    [8, 8, 24, 48, 64, 96, 128, 192]
    """
    step = 2 ** max(3, (length - 1).bit_length() - 2)
    return -(-length // step) * step


def lengths(mask_NxL: NDArray[np.bool_]) -> NDArray[np.int64]:
    return np.where(mask_NxL.any(1), mask_NxL.shape[1] - mask_NxL[:, ::-1].argmax(1), 0)


def cuts(length_N: NDArray[np.int64]) -> list[int]:
    """Ends of consecutive pieces of rows sorted by length, such that the sum over pieces of

        PER_PIECE + rows * longest * (1 + PER_PAIR * longest)

    is the least: exact, by dynamic programming.
    """
    n, length = len(length_N), length_N.astype(np.float64)
    row_N = length * (1 + PER_PAIR * length)
    cost, cut = np.zeros(n + 1), np.zeros(n + 1, np.int64)
    for end in range(1, n + 1):
        cost_of = cost[:end] + PER_PIECE + np.arange(end, 0, -1) * row_N[end - 1]
        cut[end] = cost_of.argmin()
        cost[end] = cost_of[cut[end]]
    ends, end = [], n
    while end:
        ends.append(int(end))
        end = cut[end]
    return ends[::-1]
