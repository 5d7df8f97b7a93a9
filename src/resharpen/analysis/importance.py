"""Which hyperparameters matter: how far the models of the best tenth are from being spread over all that was drawn.

PED-ANOVA (Watanabe et al. 2023) measures the importance of a hyperparameter for getting into the best tenth by the
Pearson divergence between its density p among the best and its density among all models. Here all models are draws of
a known law, so that on the scale of ranks the latter is uniform, and the divergence is

    D = integral over 0..1 of (p(u) - 1)^2 du = sum over j >= 1 of theta_j^2,    theta_j = E[sqrt(2) cos(pi j u) | best]

of which the first four terms are taken: a bump as narrow as a fifth of the range keeps 9/10 of its D. D = 0 where the
hyperparameter does not matter; D = 4 if the best all lie evenly in one fifth of the range.

It takes no fit, no forest and no density estimate, and its error is known. If the hyperparameter does not matter the
best are a random m of n models, the means of the cosines over them are uncorrelated with variance (1 - m/n) / m, and
T = sum of theta^2 / ((1 - m/n) / m) is chi-square with 4 degrees of freedom; with an importance D it is noncentral by
D m / (1 - m/n). The estimate is D with the chance part taken off, the interval holds every D under which T is not
unlikely, and leaves out zero if and only if p < 0.025. (A forest would see interactions too, but its importances have
no scale and no error of their own.) What matters in combination alone, without a trace in its own distribution, is not
seen. BEMA's rows move BEMA weights only: for training weights they are a check on the method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from resharpen.analysis.pairing import Paired
from resharpen.analysis.samples import BEST
from resharpen.analysis.statistics import TAIL, Floats, Interval, holm

if TYPE_CHECKING:
    import polars as pl

TERMS = 4


@dataclass(frozen=True)
class Importance:
    variant: str
    hyperparameter: str
    divergence: Interval
    """D; 1 / (1 + D) is about the share of the range that the best fill."""
    p: float
    """Of no importance, after Holm's correction over the hyperparameters of the variant."""
    best: int
    """Models in the best tenth, of all settings."""
    low: float
    high: float
    """The middle 80% of the values among them."""


def importances(paired: Paired, worth: float = 1.0) -> list[Importance]:
    """For every variant, the most important hyperparameter first. The best tenth is that of each setting: a hard one
    has its best too. Judged on new lengths where there are any."""
    import polars as pl

    models = paired.shown().with_columns(pl.col("gain").fill_null(-np.inf))
    found = []
    for variant in (paired.baseline, *paired.variants):
        of_variant = models.filter(variant=variant)
        columns = {name: of_variant[name] for name in paired.hyperparameters[variant]}
        # neither fixed nor missing from an older table
        names = [name for name, values in columns.items() if values.n_unique() > 1 and not values.has_nulls()]
        found += _of_variant(variant, of_variant, names, worth)
    return found


def _of_variant(variant: str, models: pl.DataFrame, names: list[str], worth: float) -> list[Importance]:
    settings = models.partition_by("setting", maintain_order=True)
    best = np.concatenate([best_tenth(rows["gain"].to_numpy()) for rows in settings])
    if not best.any() or best.all():
        return []
    intervals, ends = [], []
    for name in names:
        values = np.concatenate([rows[name].to_numpy() for rows in settings])
        rank_N = np.concatenate([spread(rows[name].to_numpy()) for rows in settings])
        intervals.append(divergence(rank_N, best, worth))
        ends.append(np.quantile(values[best], [BEST, 1 - BEST]))
    p = holm([interval.p for interval in intervals])
    rows = zip(names, intervals, p, ends, strict=True)
    found = [Importance(variant, n, d, p_, int(best.sum()), float(low), float(high)) for n, d, p_, (low, high) in rows]
    return sorted(found, key=lambda importance: -importance.divergence.estimate)


def best_tenth(gain_N: Floats) -> np.ndarray:
    """Which are the best tenth; where the last of them has equals the first drawn count."""
    best = np.zeros(len(gain_N), bool)
    best[np.argsort(-gain_N, kind="stable")[: round(BEST * len(gain_N))]] = True
    return best


def spread(value_N: Floats) -> Floats:
    """Ranks as positions in 0..1, equals in the middle of their own."""
    from scipy.stats import rankdata

    return (rankdata(value_N) - 0.5) / len(value_N)


def divergence(u_N: Floats, best_N: np.ndarray, worth: float = 1.0) -> Interval:
    """D of the best among all, see above; its threshold is zero."""
    from scipy.special import chdtrc

    cosine_TxN = np.sqrt(2) * np.cos(np.pi * np.arange(1, TERMS + 1)[:, None] * u_N)
    cosine_TxN -= cosine_TxN.mean(axis=1, keepdims=True)  # equal values leave less than the whole range
    cosine_TxN /= np.maximum(cosine_TxN.std(axis=1, keepdims=True), np.finfo(float).tiny)
    m, n = best_N.sum(), len(best_N)
    size = worth * m * (n - 1) / (n - m)
    theta_T = cosine_TxN[:, best_N].mean(axis=1)
    statistic = float(size * (theta_T**2).sum())
    low, high = (_noncentrality(statistic, tail) / size for tail in (1 - TAIL, TAIL))
    estimate = max(0.0, statistic - TERMS) / size
    return Interval(estimate, low, high, float(chdtrc(TERMS, statistic)))


def _noncentrality(statistic: float, below: float) -> float:
    """The one under which a noncentral chi-square is below the statistic with this probability; 0 if there is none."""
    from scipy.optimize import brentq
    from scipy.special import chndtr

    if chndtr(statistic, TERMS, 0.0) <= below:
        return 0.0
    end = statistic + 20 * np.sqrt(statistic) + 20
    return float(brentq(lambda nc: chndtr(statistic, TERMS, nc) - below, 0.0, end))  # pyright: ignore[reportArgumentType]
