"""Definitions behind a claim: what counts as the best results, at which checkpoint, with which threshold.

Claims are defined by the default reading; `sensitivity.py` tests them under several.

Shapes: N draws, R reweightings.
"""

from dataclasses import dataclass
from math import inf, nan

import numpy as np
from numpy.typing import NDArray

from resharpen.analysis.best_of import order_weights
from resharpen.analysis.samples import BEST
from resharpen.analysis.statistics import (
    TAIL,
    Floats,
    Interval,
    Sample,
    Terms,
    interval_of_sum,
    quantile_interval,
    reweightings,
    sum_interval,
)

THRESHOLD = 0.05
UNDEFINED = Interval(nan, -inf, inf, 1.0)
"""The interval of the expected best of k models if there are fewer than k."""


@dataclass(frozen=True)
class Reading:
    """The defaults define the claims."""

    quantile: float = BEST
    """The best results of a cell are this quantile over its models (one minus it where more is better)."""
    best_of: int | None = None
    """If given, the best results are the expected best of this many models instead."""
    selection: str = "best"
    """Which checkpoint is used."""
    threshold: float = THRESHOLD
    """The distance from perfect (TVD 0, AUC 1, accuracy 1) below which a model generalizes, and the smallest difference
    that matters."""

    def of(self, sample: Sample, threshold: float) -> Interval:
        """The best results of one cell, lower is better, with the p-value of a threshold."""
        if self.best_of is None:
            return quantile_interval(sample, self.quantile, threshold)
        return best_of_interval(sample, self.best_of, threshold)

    def of_higher(self, sample: Sample, threshold: float) -> Interval:
        """The same where more is better, for a metric from 0 to 1."""
        if self.best_of is None:
            return quantile_interval(sample, 1 - self.quantile, threshold)
        away = best_of_interval(Sample(1 - sample.values_N, sample.effective), self.best_of, 1 - threshold)
        return Interval(1 - away.estimate, 1 - away.high, 1 - away.low, away.p)

    def of_sum(self, terms: Terms, threshold: float) -> Interval:
        """A weighted sum of best results."""
        if self.best_of is None:
            return sum_interval(terms, self.quantile, threshold)
        return sum_of_best(terms, self.best_of, threshold)


DEFAULT = Reading()


def expected_best(values_N: Floats, k: int) -> float:
    """The expected smallest value of k models; nan if there are fewer than k."""
    return float(order_weights(len(values_N), [k])[0] @ np.sort(values_N)[::-1]) if k <= len(values_N) else nan


def reweighted_best(
    values_N: Floats,
    k: int,
    drawn_RxN: Floats,
    unseen_R: Floats,
    unseen: Floats | float,
    last: NDArray[np.bool_] | bool,
) -> Floats:
    """The expected smallest of k under each reweighting, [R]: the sum over sorted values of x_(i) (S_i^k - S_(i+1)^k),
    where S_i is the weight of x_(i) and all larger values. The unseen draw is the largest where `last`, else the
    smallest, with the value `unseen`."""
    order_N = np.argsort(values_N, kind="stable")
    after_R = np.where(last, unseen_R, 0.0)
    from_RxN = after_R[:, None] + np.cumsum(drawn_RxN[:, order_N[::-1]], axis=1)[:, ::-1]
    share_RxN = -np.diff(from_RxN.clip(0.0, 1.0) ** k, axis=1, append=after_R[:, None] ** k)
    return share_RxN @ values_N[order_N] + (1 - share_RxN.sum(1)) * unseen


def best_of_interval(sample: Sample, k: int, threshold: float) -> Interval:
    """The expected smallest of k models of a metric from 0 to 1, with the band of `analysis/best_of.py`: the unseen
    draw is at 0 for the lower end and at 1 for the upper. p is twice the share of reweightings on the other side of the
    threshold, where one is added to the count."""
    estimate = expected_best(sample.values_N, k)
    if np.isnan(estimate):
        return UNDEFINED
    weights = reweightings(len(sample.values_N), sample.effective, 0, unseen=1.0)
    low_R, high_R = (reweighted_best(sample.values_N, k, *weights, float(last), last) for last in (False, True))
    low = float(np.quantile(low_R, TAIL, method="lower"))
    high = float(np.quantile(high_R, 1 - TAIL, method="higher"))
    beyond = min((low_R <= threshold).sum(), (high_R >= threshold).sum())
    return Interval(
        estimate, min(low, estimate), max(high, estimate), min(1.0, 2 * float(beyond + 1) / (len(low_R) + 1))
    )


def sum_of_best(terms: Terms, k: int, threshold: float) -> Interval:
    """As `sum_interval`, for expected smallest values instead of quantiles. It has an interval if the quantile 1 / (k +
    1), the mean rank of the smallest of k, has one: for k = 48 from 163 draws on."""
    if any(k > len(sample.values_N) for _, _, sample in terms):
        return UNDEFINED

    def under(values_N: Floats, drawn_RxN: Floats, unseen_R: Floats, adds: bool) -> Floats:
        last_R = (np.arange(len(unseen_R)) % 2 == 1) != adds
        unseen_at_R = np.where(last_R, values_N.max(), values_N.min())
        return reweighted_best(values_N, k, drawn_RxN, unseen_R, unseen_at_R, last_R)

    return interval_of_sum(terms, threshold, lambda values_N: expected_best(values_N, k), under, k / (k + 1))
