"""Importance of hyperparameters: how unevenly the best tenth of the models is distributed over the drawn values.

PED-ANOVA (Watanabe et al. 2023) measures the importance of a hyperparameter by the Pearson divergence between its
density p among the best tenth and its density among all models. On the scale of ranks the latter is uniform, so the
divergence is

    D = integral over 0..1 of (p(u) - 1)^2 du = sum over j >= 1 of theta_j^2,    theta_j = E[sqrt(2) cos(pi j u) | best]

The first four terms are used: a bump as narrow as a fifth of the range keeps 9/10 of its D. D = 0 if the
hyperparameter does not matter; D = 4 if the best are uniform on one fifth of the range.

Without importance the best are a random m of n models, the means of the cosines over them are uncorrelated with
variance (1 - m/n) / m, and T = sum of theta^2 / ((1 - m/n) / m) is chi-square with 4 degrees of freedom; with
importance D it is noncentral by D m / (1 - m/n). The estimate is D less its expectation by chance; the interval has
every D under which T is not unlikely, and excludes zero if and only if p < 0.025. Pure interactions, which leave the
distribution of each single hyperparameter uniform, are not detected. BEMA's rows affect BEMA weights only: for training
weights they are a check on the method.
"""

from dataclasses import dataclass, replace

import numpy as np

from resharpen.analysis.pairing import Paired
from resharpen.analysis.samples import BEST
from resharpen.analysis.statistics import TAIL, Floats, Interval, holm
from resharpen.lazy import pl, scipy

TERMS = 4


@dataclass(frozen=True)
class Importance:
    variant: str
    hyperparameter: str
    divergence: Interval
    """D; the best fill about 1 / (1 + D) of the range."""
    p: float
    """Of D = 0, after Holm's correction over the hyperparameters of the variant."""
    best: int
    """Number of models in the best tenth, over all settings."""
    low: float
    high: float
    """The middle 80% of the values among them."""


def importances(paired: Paired, worth: float = 1.0) -> list[Importance]:
    """For every variant, the most important hyperparameter first. The best tenth is taken in each setting, by scores on
    new lengths where there are any."""
    models = paired.shown().with_columns(pl.col("gain").fill_null(-np.inf))
    found = []
    for variant in (paired.baseline, *paired.variants):
        settings = models.filter(variant=variant).partition_by("setting", maintain_order=True)
        best = np.concatenate([best_tenth(rows["gain"].to_numpy()) for rows in settings])
        if best.all() or not best.any():
            continue
        of_variant = []
        for name in paired.hyperparameters[variant]:
            columns = [rows[name] for rows in settings]
            values = pl.concat(columns)
            if values.n_unique() == 1 or values.has_nulls():  # fixed, or missing from an older table
                continue
            interval = divergence(np.concatenate([spread(column.to_numpy()) for column in columns]), best, worth)
            low, high = np.quantile(values.to_numpy()[best], [BEST, 1 - BEST])
            of_variant.append(Importance(variant, name, interval, interval.p, int(best.sum()), float(low), float(high)))
        corrected = zip(of_variant, holm([one.p for one in of_variant]), strict=True)
        found += sorted((replace(one, p=p) for one, p in corrected), key=lambda one: -one.divergence.estimate)
    return found


def best_tenth(gain_N: Floats) -> np.ndarray:
    """Mask of the best tenth; of equal values the first drawn count."""
    best = np.zeros(len(gain_N), bool)
    best[np.argsort(-gain_N, kind="stable")[: round(BEST * len(gain_N))]] = True
    return best


def spread(value_N: Floats) -> Floats:
    """Ranks scaled to 0..1; equal values share their mean rank."""
    return (scipy.stats.rankdata(value_N) - 0.5) / len(value_N)


def divergence(u_N: Floats, best_N: np.ndarray, worth: float = 1.0) -> Interval:
    """The importance D, see above; the p-value is of D = 0."""
    cosine_TxN = np.sqrt(2) * np.cos(np.pi * np.arange(1, TERMS + 1)[:, None] * u_N)
    cosine_TxN -= cosine_TxN.mean(axis=1, keepdims=True)  # equal values do not fill the range
    cosine_TxN /= np.maximum(cosine_TxN.std(axis=1, keepdims=True), np.finfo(float).tiny)
    m, n = best_N.sum(), len(best_N)
    size = worth * m * (n - 1) / (n - m)
    theta_T = cosine_TxN[:, best_N].mean(axis=1)
    statistic = float(size * (theta_T**2).sum())
    low, high = (_noncentrality(statistic, tail) / size for tail in (1 - TAIL, TAIL))
    estimate = max(0.0, statistic - TERMS) / size
    return Interval(estimate, low, high, float(scipy.special.chdtrc(TERMS, statistic)))


def _noncentrality(statistic: float, below: float) -> float:
    """The noncentrality at which a chi-square is below the statistic with this probability; 0 if there is none."""
    if scipy.special.chndtr(statistic, TERMS, 0.0) <= below:
        return 0.0
    end = statistic + 20 * np.sqrt(statistic) + 20
    return float(scipy.optimize.brentq(lambda nc: scipy.special.chndtr(statistic, TERMS, nc) - below, 0.0, end))  # pyright: ignore[reportArgumentType]
