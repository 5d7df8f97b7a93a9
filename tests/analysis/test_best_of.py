"""Expected best of k draws: against enumeration, and how often its band covers the truth."""

from itertools import combinations

import numpy as np
import pytest

from resharpen.analysis.best_of import best_of, budgets
from resharpen.analysis.statistics import Sample


def sample(values, worth=1.0):
    values = np.asarray(values, float)
    return Sample(values, worth * len(values))


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_it_is_the_mean_over_all_subsets(n):
    rng = np.random.default_rng(n)
    values = rng.normal(size=n)
    k_K = list(range(1, n + 1))

    def mean_of_maxima(x):
        return np.array([np.mean([max(x[list(some)]) for some in combinations(range(n), k)]) for k in k_K])

    found = best_of(sample(values), -9.0, k_K)
    assert [interval.estimate for interval in found] == pytest.approx(mean_of_maxima(values))
    assert all(interval.low <= interval.estimate <= interval.high for interval in found)


def test_budgets_leave_four_draws_for_each():
    assert budgets(3) == [1]
    assert budgets(32) == [1, 2, 3, 4, 6, 8]
    assert max(budgets(96)) <= 24


def stuck_or_learned(rng, shape):
    """A TVD: a third learned it, the others are stuck, a few are lost."""
    kind = rng.choice(3, p=[0.33, 0.62, 0.05], size=shape)
    return -np.choose(kind, [rng.beta(2, 40, shape), rng.beta(30, 40, shape), np.ones(shape)])


def skewed(rng, shape):
    return -np.minimum(1, np.exp(rng.normal(-3, 1.2, shape)))


@pytest.mark.parametrize("population", [stuck_or_learned, skewed])
@pytest.mark.parametrize("n", [32, 96])
def test_the_band_covers_the_truth(population, n):
    rng, k_K, times = np.random.default_rng(1), budgets(n)[::2], 150
    cdf = np.arange(1, 200_001) / 200_000
    many = np.sort(population(rng, 200_000))
    truth_K = np.array([many @ (cdf**k - (cdf - 1 / 200_000) ** k) for k in k_K])
    covered_K = np.zeros(len(k_K))
    for values in population(rng, (times, n)):
        covered_K += [
            i.low <= true <= i.high for i, true in zip(best_of(sample(values), -1.0, k_K), truth_K, strict=True)
        ]
    # 0.93 less two standard errors of 150 simulations
    assert (covered_K / times >= 0.89).all(), covered_K / times
    assert covered_K.mean() / times >= 0.94


def test_fewer_effective_draws_widen_the_band():
    values = np.random.default_rng(0).normal(size=64)
    (whole,), (half,) = (best_of(sample(values, worth), -9.0, [4]) for worth in (1.0, 0.5))
    assert half.estimate == whole.estimate
    assert half.high - half.low > 1.2 * (whole.high - whole.low)
