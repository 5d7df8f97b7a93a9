import numpy as np

from resharpen.engines.pieces import FIXED_POSITIONS, fixed_pieces
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
    return sorted(tuple(zip(x[m], y[m], strict=True)) for b in batches for x, y, m in zip(*b, strict=True) if m.any())


def test_fixed_pieces_hold_every_sequence_once_in_shapes_that_no_minibatch_changes():
    shapes = set()
    for seed in range(40):
        batch = minibatch(seed)
        pieces = list(fixed_pieces(batch, LONGEST))
        assert rows_of(pieces) == rows_of([batch])
        assert all(x.shape == piece.mask.shape for piece in pieces for x in piece)
        shapes |= {piece.mask.shape for piece in pieces}
    assert all(rows * length <= 1.5 * FIXED_POSITIONS for rows, length in shapes)
    lengths = sorted(length for _, length in shapes)
    assert set(lengths) <= {8, 16, 24, 32, 48, 64, 96, LONGEST}
    assert len(lengths) == len(set(lengths))  # one number of rows for each


def test_a_row_longer_than_was_said_is_not_cut():
    batch = minibatch(0)
    assert rows_of(fixed_pieces(batch, 20)) == rows_of([batch])
