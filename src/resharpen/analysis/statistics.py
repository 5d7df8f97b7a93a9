"""Bootstrap over groups of draws, and Holm's correction.

The sixteen draws of a group see the same minibatches, so the group, not the model, is what is resampled. Models of one
draw are compared pair by pair across placements and weights: they share hyperparameters, initial weights and data.

Shapes: G groups, D draws of a group, R resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RESAMPLES = 4000
TAIL = 0.025
"""Left out on each side of a 95% interval."""


@dataclass(frozen=True)
class Interval:
    estimate: float
    low: float
    high: float
    p: float
    """Two-sided, that the statistic lies on the other side of the threshold."""


def bootstrap(statistic: Callable[[Floats], Floats], values_GxD: Sequence[Floats], threshold: float) -> Interval:
    """Percentile interval of `statistic`, a function of values along the last axis, and the p-value of `threshold`.

    Groups may differ in size: a resample takes whole groups. g groups cannot resolve a probability below g^-g, that of
    drawing one group g times, so no p-value is smaller than that: with few groups nothing is decided.
    """
    estimate = float(statistic(np.concatenate(values_GxD)))
    resampled_R = resample(statistic, values_GxD, picks(len(values_GxD)))
    return interval(estimate, resampled_R, threshold, len(values_GxD))


def bootstrap_sum(
    statistic: Callable[[Floats], Floats], terms: Sequence[tuple[float, str, Sequence[Floats]]], threshold: float
) -> Interval:
    """The same for the sum of weight * statistic(values) over terms of (weight, setting, values by group).

    Draws of different settings share neither hyperparameters nor data, so each setting's groups are resampled for
    themselves; terms of one setting go together. The setting with the fewest groups says which p-value can be resolved.
    """
    groups = {setting: len(values) for _, setting, values in terms}
    resampled = {setting: picks(groups[setting], stream) for stream, setting in enumerate(sorted(groups))}
    estimate = sum(weight * float(statistic(np.concatenate(values))) for weight, _, values in terms)
    total_R = sum(weight * resample(statistic, values, resampled[setting]) for weight, setting, values in terms)
    return interval(estimate, np.asarray(total_R), threshold, min(groups.values()))


def picks(groups: int, stream: int = 0) -> NDArray[np.int64]:
    """Which groups each resample takes, [R, G]; the same whenever asked, so that verdicts do not flicker."""
    return np.random.default_rng(stream).integers(groups, size=(RESAMPLES, groups))


def resample(
    statistic: Callable[[Floats], Floats], values_GxD: Sequence[Floats], picks_RxG: NDArray[np.int64]
) -> Floats:
    """The statistic of every resample, [R]; resamples with equally many draws are computed together."""
    draws_G = np.array([len(group) for group in values_GxD])
    if (draws_G == draws_G[0]).all():
        return statistic(np.stack(values_GxD)[picks_RxG].reshape(len(picks_RxG), -1))
    real_GxD = np.arange(draws_G.max()) < draws_G[:, None]
    padded_GxD = np.zeros(real_GxD.shape)
    padded_GxD[real_GxD] = np.concatenate(values_GxD)
    draws_R, result_R = draws_G[picks_RxG].sum(1), np.empty(len(picks_RxG))
    for draws in np.unique(draws_R):
        rows = picks_RxG[draws_R == draws]
        result_R[draws_R == draws] = statistic(padded_GxD[rows][real_GxD[rows]].reshape(-1, draws))
    return result_R


def interval(estimate: float, resampled_R: Floats, threshold: float, groups: int) -> Interval:
    low, high = np.quantile(resampled_R, [TAIL, 1 - TAIL])
    return Interval(estimate, float(low), float(high), two_sided_p(resampled_R, threshold, groups))


def two_sided_p(resampled: Floats, threshold: float, groups: int) -> float:
    below, above = (resampled <= threshold).mean(), (resampled >= threshold).mean()
    return float(min(1.0, 2 * max(min(below, above), 1 / len(resampled), float(groups) ** -groups)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values: sorted ascending, p_(i) * (n - i), made monotone, at most one.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, worst = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        worst = max(worst, min(1.0, p_values[index] * (len(p_values) - rank)))
        adjusted[index] = worst
    return adjusted
