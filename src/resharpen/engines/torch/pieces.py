"""A minibatch in pieces of sequences of similar length, without most of the padding, which fit in the caches.

Shapes: N sequences, L positions.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resharpen.engines.base import lengths
from resharpen.tasks import Batch

PER_PIECE, PER_PAIR = 60.0, 0.004
"""Approximate fixed cost of a piece, and cost of a pair of positions in attention, in units of a position."""
POSITIONS_AT_ONCE = 2048
"""A piece with more positions than this is split further."""


class Piece(NamedTuple):
    """Some sequences of a minibatch, and their rows in it."""

    inputs: NDArray[np.int64]
    targets: NDArray[np.int64]
    mask: NDArray[np.bool_]
    row: NDArray[np.int64]


def pieces(batch: Batch) -> Iterator[Piece | Batch]:
    """The same sequences, shortest first, padding cut off; inputs that are not sequences stay whole."""
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
                inputs, targets = batch.inputs[chosen, :longest], batch.targets[chosen, :longest]
                yield Piece(inputs, targets, mask[chosen, :longest], chosen)
        begin = end


def cuts(length_N: NDArray[np.int64]) -> list[int]:
    """Ends of consecutive pieces of rows sorted by length, such that the sum over pieces of

        PER_PIECE + rows * longest * (1 + PER_PAIR * longest)

    is minimal: exact, by dynamic programming.
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
