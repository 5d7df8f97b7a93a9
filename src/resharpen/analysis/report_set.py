"""The sampling error of the report set in a comparison, and the score of the best constant on it.

All models of a run are scored on the same sequences. Their sampling error is common to all draws, so intervals over
draws do not include it. The table `lengths` has every value without each of K blocks of sequences; a statistic without
block k differs from the whole by D_k, and its standard error is that of a jackknife:

    error^2 = (K - 1) / K  sum_k (D_k - mean)^2

If values x_i change by d_i, a quantile changes by the mean of d_i over the draws near it: the middle half for a median,
the best fifth for a best tenth. Each side of the interval, of length `reach`, is widened to sqrt(reach^2 + (t
error)^2), where t is Student's with K - 1 degrees of freedom.

Shapes: N draws, K blocks, R rows of a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isclose, nan
from typing import Any

import numpy as np

from resharpen.analysis.statistics import TAIL, Floats, Interval, Sample
from resharpen.lazy import pl, scipy
from resharpen.metrics import jackknife_error
from resharpen.tasks.blocks import BLOCKS

Shifts = Mapping[tuple[Any, ...], Floats]
"""Key of a cell -> change of the gain of each draw without each block, [N, K]; cells without these values are left
out."""


@dataclass(frozen=True)
class Places:
    """The number of scored places of a comparison."""

    total: int
    fewest: int
    """At the length with the fewest places."""

    def said(self) -> str:
        return f"{self.total:,} places" + (f", {self.fewest:,} at the fewest" if self.fewest < self.total else "")


@dataclass(frozen=True)
class Constant:
    """The best constant distribution at each length, and the models that are better."""

    value: float
    perfect: float
    beat: int
    models: int
    baseline_beat: int
    baseline_models: int

    @property
    def trained(self) -> bool:
        """Whether the best tenth of either variant beats the constant, or the constant is perfect already."""
        return (
            isclose(self.value, self.perfect, abs_tol=1e-6)
            or self.beat >= 0.1 * self.models
            or self.baseline_beat >= 0.1 * self.baseline_models
        )

    def share(self, gain: float) -> float:
        """A gain as a share of the distance from the constant to a perfect score."""
        way = abs(self.value - self.perfect)
        return gain / way if 1e-6 < way < inf else nan


def shifts(rows: pl.DataFrame, keys: Sequence[str], sign: int) -> Shifts:
    """Changes of the mean over the rows of each draw; 0 for a model without values."""
    if "without" not in rows.columns:
        return {}
    found = {}
    for key, part in rows.sort("draw").group_by(*keys, maintain_order=True):
        known = part.filter(pl.col("value").is_not_null())
        if known.is_empty() or known["without"].null_count():
            continue
        moved_RxK = sign * np.array(known["without"].to_list(), dtype=np.float64)
        moved_RxK -= moved_RxK.mean(1, keepdims=True)
        draws, at_R = np.unique(part["draw"].to_numpy(), return_inverse=True)
        total_NxK, count_N = np.zeros((len(draws), moved_RxK.shape[1])), np.bincount(at_R, minlength=len(draws))
        np.add.at(total_NxK, np.searchsorted(draws, known["draw"].to_numpy()), moved_RxK)
        found[key] = total_NxK / count_N[:, None]
    return found


def of_median(shifted: Shifts, cells: Sequence[tuple[Any, Any, Sample]]) -> float:
    """The error of the mean over cells of the median gain; a cell is (key of a variant, key of the baseline, gains). 0
    if it is not known."""
    if not all(a in shifted and b in shifted for a, b, _ in cells):
        return 0.0
    moved = []
    for a, b, gains in cells:
        n, order_N = len(gains.values_N), np.argsort(gains.values_N, kind="stable")
        moved.append((shifted[a] - shifted[b])[order_N[n // 4 : n - n // 4]].mean(0))
    return _error(moved)


def of_best(shifted: Shifts, cells: Sequence[tuple[Any, Any, Sample, Sample]]) -> float:
    """The same for the difference of the best tenths, of (key of a variant, key of the baseline, their values)."""
    if not all(a in shifted and b in shifted for a, b, _, _ in cells):
        return 0.0
    return _error(
        [shifted[a][_best(x.values_N)].mean(0) - shifted[b][_best(y.values_N)].mean(0) for a, b, x, y in cells]
    )


def _error(moved: Sequence[Floats]) -> float:
    return float(jackknife_error(np.mean(moved, axis=0)))


def _best(values_N: Floats) -> Any:
    return np.argsort(-values_N, kind="stable")[: -(-len(values_N) // 5)]


def widened(interval: Interval, error: float) -> Interval:
    """The interval with the error of the report set added; the threshold of the p-value is zero.

    >>> round(widened(Interval(3.0, 0.0, 6.0, 0.05), 4 / 2.2621571628540993).low, 6)
    -2.0
    """
    if error == 0:
        return interval
    reach = error * float(scipy.special.stdtrit(BLOCKS - 1, 1 - TAIL))
    low, high = (
        interval.estimate + sign * float(np.hypot(end - interval.estimate, reach))
        for sign, end in ((-1, interval.low), (1, interval.high))
    )
    toward = interval.estimate - interval.low if interval.estimate > 0 else interval.high - interval.estimate
    factor = float(np.hypot(toward, reach)) / toward if 0 < toward < np.inf else 1.0 if toward else np.inf
    p = 2 * float(scipy.special.ndtr(scipy.special.ndtri(interval.p / 2) / factor)) if interval.p < 1 else 1.0
    # p-value and interval agree up to rounding and the discreteness of exact tests: the interval decides
    p = max(p, 2 * TAIL) if low <= 0 <= high else min(p, np.nextafter(2 * TAIL, 0))
    return Interval(interval.estimate, low, high, p)
