"""The expected best of k draws: the expected result of a random search over k models.

Higher values are better. Shapes: N draws, K budgets, R reweightings.
"""

from collections.abc import Sequence

import numpy as np

from resharpen.analysis.statistics import TAIL, Floats, Interval, Sample, reweightings

REWEIGHTINGS = 1000
"""Number of reweightings; 25 are beyond each end of a band."""
SHARE = 4
"""Draws per model of the largest budget: with fewer the estimate depends on a few draws, and bands are wide."""


def budgets(draws: int) -> list[int]:
    """k = 1 .. draws / 4, in about even steps on a logarithmic scale.

    >>> budgets(64)
    [1, 2, 3, 4, 6, 8, 11, 16]
    """
    largest = max(1, draws // SHARE)
    return sorted({int(k) for k in (2 ** (np.arange(int(2 * np.log2(largest)) + 1) / 2)).round()})


def order_weights(n: int, budgets_K: Sequence[int]) -> Floats:
    """The probability that x_(i) is the best of k drawn from n without replacement, C(i-1, k-1) / C(n, k), [K, N]. With
    these weights the values sum to an unbiased estimate of the expected best of k.

    >>> order_weights(4, [1, 2]).round(3).tolist()
    [[0.25, 0.25, 0.25, 0.25], [0.0, 0.167, 0.333, 0.5]]
    """
    k_K, i = np.array(budgets_K)[:, None], np.arange(n, 1, -1)
    ratio_KxN = np.clip((i - k_K) / (i - 1), 0.0, None)  # of a weight to that of the next larger value
    return (k_K / n * np.cumprod(np.insert(ratio_KxN, 0, 1.0, axis=1), axis=1))[:, ::-1]


def best_of(sample: Sample, worst: float, best: float, budgets_K: Sequence[int]) -> list[Interval]:
    """The expected best of k draws, for each k, with a band that covers at least 95% at each k; no threshold, so p = 1.

    The draws are reweighted together with one unseen draw (Dirichlet weights). The upper end is the 97.5% quantile of
    the reweighted values with the unseen draw at `best`, the lower end the 2.5% quantile with it at `worst`, which may
    be infinite. Without an unseen draw a bootstrap fails at large k: if 2% of models are much better than all others,
    half of all samples of 32 draws have none of them.

    For two possible scores the band is Clopper and Pearson's interval, for k = 1 the bound of Gaffke (2005) on a mean.
    In simulations on scores of figure 1 it covers 98% on average, and 95% in the worst cell and k of `budgets`.
    """
    n, sorted_N = len(sample.values_N), np.sort(sample.values_N)
    drawn_RxN, unseen_R = (weights[:REWEIGHTINGS] for weights in reweightings(n, sample.effective, 0, unseen=1.0))
    # The share of models up to each draw if the unseen one is the best, and before each draw if it is the worst. The
    # weights of all draws have the same distribution, so they need not be sorted with the values.
    to_RxN = np.cumsum(drawn_RxN, axis=1).clip(0.0, 1.0)
    before_RxN = (np.cumsum(drawn_RxN, axis=1) - drawn_RxN + unseen_R[:, None]).clip(0.0, 1.0)
    up_N = np.diff(sorted_N, append=max(best, sorted_N[-1]))
    down_N = np.diff(sorted_N, prepend=min(worst, sorted_N[0]))
    found = []
    for k, weight_N in zip(budgets_K, order_weights(n, budgets_K), strict=True):
        estimate = float(weight_N @ sorted_N)
        # the integral of x dF^k by parts, each from the end that is finite
        low = np.quantile(sorted_N[-1] - before_RxN**k @ down_N, TAIL, method="lower")
        high = np.quantile(sorted_N[0] + (1 - to_RxN**k) @ up_N, 1 - TAIL, method="higher")
        found.append(Interval(estimate, min(float(low), estimate), max(float(high), estimate), p=1.0))
    return found
