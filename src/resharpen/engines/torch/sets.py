"""Prefixes of distinct tokens as states (last token, set of tokens), equal ones counted once.

Shapes: M models, N sequences, L positions, V tokens, P states.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resharpen.tasks import Batch

MOST_BITS = 48
"""The largest vocabulary whose sets are stored as the bits of one integer."""


class States(NamedTuple):
    last: NDArray[np.int64]
    """[P]"""
    present: NDArray[np.bool_]
    """[V, P]: the states are the long axis, and lie side by side."""
    counts: NDArray[np.float64]
    """How often each token was the target, [V, P]."""


PADDED_TO = 128
"""The number of states is padded to a multiple of this, so that there are few shapes to compile for."""


def merged(batch: Batch, vocabulary: int) -> States:
    """The distinct states of a minibatch and their targets, padded with states that have no target."""
    inputs, targets = batch.inputs[batch.mask], batch.targets[batch.mask]
    set_NxL = np.bitwise_or.accumulate(np.left_shift(1, batch.inputs), axis=1)
    key, where = np.unique(set_NxL[batch.mask] * vocabulary + inputs, return_inverse=True)
    set_P, last_P = np.divmod(np.pad(key, (0, -len(key) % PADDED_TO), mode="edge"), vocabulary)
    counts = np.bincount(targets * len(set_P) + where, minlength=vocabulary * len(set_P)).astype(float)
    present = np.right_shift(set_P, np.arange(vocabulary)[:, None]) & 1
    return States(last_P, present.astype(bool), counts.reshape(vocabulary, -1))
