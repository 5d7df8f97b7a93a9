"""Scores of a prediction against the exact next-token distribution, and their reduction by length."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


def total_variation(p: Floats, p_star: Floats) -> Floats:
    """TVD = 1/2 sum_t |p_t - p*_t| over the last axis, in [0, 1].

    >>> float(total_variation(np.array([0.5, 0.5]), np.array([1.0, 0.0])))
    0.5
    """
    return 0.5 * np.abs(p - p_star).sum(axis=-1)


ByLength = tuple[NDArray[np.int64], Floats, NDArray[np.int64]]
"""Lengths, the values of each model at them [M, lengths], and how many prefixes stand behind each."""


def mean_by_length(values_MxP: Floats, length_P: NDArray[np.int64]) -> ByLength:
    """Mean over the prefixes of each length."""
    lengths, where, counts = np.unique(length_P, return_inverse=True, return_counts=True)
    order = np.argsort(where, kind="stable")
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    sums = np.add.reduceat(values_MxP[:, order].astype(np.float64), starts, axis=1)
    return lengths, sums / counts, counts
