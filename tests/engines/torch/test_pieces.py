from itertools import accumulate

import numpy as np
import pytest

from resharpen.engines.torch import pieces as p
from resharpen.engines.torch.pieces import pieces
from resharpen.tasks import Batch

LONGEST = 100


def minibatch(seed):
    """Rows of all lengths up to the longest, one of them empty, padded to the longest of this minibatch."""
    rng = np.random.default_rng(seed)
    length_N = np.append(rng.integers(0, rng.integers(2, LONGEST + 1), 70), 0)
    mask = np.arange(length_N.max()) < length_N[:, None]
    inputs, targets = (np.where(mask, rng.integers(1, 1000, mask.shape), 0) for _ in range(2))
    return Batch(inputs, targets, mask)


def rows_of(batches):
    return sorted(
        tuple(zip(x[m], y[m], strict=True)) for b in batches for x, y, m in zip(*b[:3], strict=True) if m.any()
    )


def cost(shapes):
    return sum(p.PER_PIECE + rows * length * (1 + p.PER_PAIR * length) for rows, length in shapes)


def compositions(n):
    return [[n]] + [[first, *rest] for first in range(1, n) for rest in compositions(n - first)]


def test_pieces_hold_every_sequence_once():
    for seed in range(40):
        batch = minibatch(seed)
        found = list(pieces(batch))
        assert rows_of(found) == rows_of([batch])
        assert all(x.shape == piece.mask.shape for piece in found for x in piece[:3])
        for piece in found:
            width = piece.mask.shape[1]
            assert all(np.array_equal(x, whole[piece.row, :width]) for x, whole in zip(piece, batch, strict=False))


def test_pieces_cost_the_least_of_all_cuts():
    rng = np.random.default_rng(1)
    for _ in range(20):
        length_N = np.sort(rng.integers(1, 60, 9))
        mask = np.arange(length_N.max()) < length_N[:, None]
        found = [piece.mask.shape for piece in pieces(Batch(mask.astype(int), mask.astype(int), mask))]
        least = min(
            cost((rows, length_N[end - 1]) for rows, end in zip(sizes, accumulate(sizes), strict=True))
            for sizes in compositions(len(length_N))
        )
        assert cost(found) == pytest.approx(least)


def test_a_piece_is_no_larger_than_what_fits_the_caches():
    mask = np.ones((40, 300), bool)
    found = list(pieces(Batch(mask.astype(int), mask.astype(int), mask)))
    assert sum(len(piece.mask) for piece in found) == 40
    assert all(piece.mask.size <= p.POSITIONS_AT_ONCE for piece in found)
