"""Scores of a prediction against the exact next-token distribution, and their reduction by length."""

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
"""Lengths, the values per model [M, lengths], and the number of prefixes per length."""


def mean_by_length(
    values_MxP: Floats, length_P: NDArray[np.int64], defined_P: NDArray[np.bool_] | None = None
) -> ByLength:
    """Mean over the prefixes of each length at which the values are defined; nan if there are none."""
    if defined_P is not None and not defined_P.all():
        every = np.unique(length_P)
        values_MxS, counts = np.full((len(values_MxP), len(every)), np.nan), np.zeros(len(every), np.int64)
        if defined_P.any():
            lengths, means_MxS, n = mean_by_length(values_MxP[:, defined_P], length_P[defined_P])
            at = np.searchsorted(every, lengths)
            values_MxS[:, at], counts[at] = means_MxS, n
        return every, values_MxS, counts
    lengths, where, counts = np.unique(length_P, return_inverse=True, return_counts=True)
    order = np.argsort(where, kind="stable")
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    sums = np.add.reduceat(values_MxP[:, order].astype(np.float64), starts, axis=1)
    return lengths, sums / counts, counts


def exact_by_length(
    error_MxP: Floats, row_P: NDArray[np.int64], length_P: NDArray[np.int64], defined_P: NDArray[np.bool_]
) -> ByLength:
    """For each length, the share of sequences without an error up to their last place of this length, among sequences
    in which an error is defined at some place so far. Places are in order; `row_P` is the sequence of each place.

    >>> row, length, defined = np.array([0, 0, 1, 1]), np.array([1, 2, 1, 2]), np.array([1, 1, 0, 1], bool)
    >>> lengths, exact, count = exact_by_length(np.array([[0.0, 1.0, np.nan, 0.0]]), row, length, defined)
    >>> lengths.tolist(), exact.tolist(), count.tolist()  # at length 1 the second sequence has no determined place yet
    ([1, 2], [[1.0, 0.5]], [1, 2])
    """
    exact_MxP, last_P, seen_P = exact_places(error_MxP, row_P, length_P, defined_P)
    return mean_by_length(exact_MxP[:, last_P], length_P[last_P], seen_P[last_P])


def exact_places(
    error_MxP: Floats, row_P: NDArray[np.int64], length_P: NDArray[np.int64], defined_P: NDArray[np.bool_]
) -> tuple[Floats, NDArray[np.bool_], NDArray[np.bool_]]:
    """For each place: whether its sequence has no error so far [M, P]; whether it is the last place of its length in
    its sequence [P]; whether an error is defined at some place so far [P]."""
    first_P = np.maximum.accumulate(np.where(np.diff(row_P, prepend=-1) != 0, np.arange(len(row_P)), 0))
    wrong_MxP = np.where(defined_P, error_MxP, 0.0)  # keep nan: a model without values
    total_MxP = np.cumsum(wrong_MxP, axis=1, dtype=np.float64)
    before_MxP = (total_MxP - wrong_MxP)[:, first_P]
    seen_P = np.cumsum(defined_P)
    seen_P = seen_P > (seen_P - defined_P)[first_P]
    here_MxP = total_MxP - before_MxP
    exact_MxP = np.where(np.isnan(here_MxP), np.nan, here_MxP < 0.5)
    last_P = (np.diff(row_P, append=-1) != 0) | (np.diff(length_P, append=-1) != 0)
    return exact_MxP, last_P, seen_P


def means_without(
    values_MxP: Floats,
    length_P: NDArray[np.int64],
    block_P: NDArray[np.int64],
    blocks: int,
    defined_P: NDArray[np.bool_] | None = None,
) -> Floats:
    """Means by length as in `mean_by_length`, leaving out one block of places at a time, [M, lengths, blocks]; nan
    where no place is left."""
    every, where_P = np.unique(length_P, return_inverse=True)
    kept_P = np.ones(len(length_P), bool) if defined_P is None else defined_P
    cell_P = (where_P * blocks + block_P)[kept_P]
    order, cells = np.argsort(cell_P, kind="stable"), len(every) * blocks
    count_C = np.bincount(cell_P, minlength=cells)
    starts = np.concatenate([[0], np.cumsum(count_C)])
    sorted_MxP = values_MxP[:, kept_P][:, order].astype(np.float64)
    padded_MxP = np.concatenate([sorted_MxP, np.zeros((len(values_MxP), 1))], axis=1)
    sum_MxC = np.where(count_C > 0, np.add.reduceat(padded_MxP, starts[:-1], axis=1), 0.0)
    sum_MxSxK, count_SxK = sum_MxC.reshape(-1, len(every), blocks), count_C.reshape(len(every), blocks)
    with np.errstate(invalid="ignore"):
        return (sum_MxSxK.sum(2, keepdims=True) - sum_MxSxK) / (count_SxK.sum(1, keepdims=True) - count_SxK)


def jackknife_error(without: Floats) -> Floats:
    """The jackknife standard error of a value, from its values without each of K equal blocks (the last axis):
    sqrt((K - 1) / K  sum_k (v_k - mean)^2).

    >>> float(jackknife_error(np.array([2.0, 3.0, 4.0])))  # the means of two of (1, 3, 5); their error is 2 / sqrt(3)
    1.1547005383792515
    """
    blocks = without.shape[-1]
    return np.sqrt((blocks - 1) * np.var(without, axis=-1))


def equal_length_auc(
    scores_MxNxL: Floats, legal_NxL: NDArray[np.bool_], weight_NxL: Floats, alive_L: Floats
) -> NDArray[np.float64]:
    """ROC AUC over pairs (legal, illegal) of prefixes of equal length, pooled over lengths; ties count half; [M].

        sum_l alive_l sum_ij w_il w_jl ([x_il > x_jl] + [x_il = x_jl] / 2)  /  sum_l alive_l sum_ij w_il w_jl

    with i over the legal and j over the illegal prefixes of length l. Lengths are weighted by how often prefixes of
    this length occur. nan if there is no pair, or if a score is nan.

    >>> scores = np.array([[[3.0], [1.0], [1.0], [0.0]]])  # one model, four prefixes of one length
    >>> equal_length_auc(scores, np.array([[1], [1], [0], [0]], bool), np.full((4, 1), 0.25), np.ones(1)).tolist()
    [0.875]
    """
    legal_LxN, weight_LxN = legal_NxL.T, weight_NxL.T
    total = (alive_L * (weight_LxN * legal_LxN).sum(1) * (weight_LxN * ~legal_LxN).sum(1)).sum()
    if not total > 0:
        return np.full(len(scores_MxNxL), np.nan)
    auc_M = np.empty(len(scores_MxNxL))
    for m, scores_NxL in enumerate(scores_MxNxL):
        won = 0.0
        for ties_first in (legal_LxN, ~legal_LxN):  # equal scores in either order: their mean counts a tie half
            order_LxN = np.lexsort((~ties_first, scores_NxL.T), axis=1)
            sorted_legal, sorted_weight = (np.take_along_axis(x, order_LxN, 1) for x in (legal_LxN, weight_LxN))
            below_LxN = np.cumsum(np.where(sorted_legal, 0, sorted_weight), axis=1)  # weight of illegal ones below
            won += (alive_L * (np.where(sorted_legal, sorted_weight, 0) * below_LxN).sum(1)).sum() / 2
        auc_M[m] = won / total
    auc_M[np.isnan(scores_MxNxL).any(axis=(1, 2))] = np.nan
    return auc_M
