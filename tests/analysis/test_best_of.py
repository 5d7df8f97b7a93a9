"""Expected best of k draws: against enumeration, and how often its band covers the truth."""

from itertools import combinations
from math import inf

import numpy as np
import pytest
from scipy.stats import beta

import resharpen as rs
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

    found = best_of(sample(values), -9.0, 9.0, k_K)
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


def rarely_learned(rng, shape):
    return -np.where(rng.random(shape) < 0.03, rng.beta(2, 40, shape), rng.beta(30, 40, shape))


def of_figure_1(setting, variant):
    """The scores of a cell in reference/, resampled; in these, few models are far better than all others."""
    models = rs.reference("fig1-laptop").table("models")
    scores = -models.filter(setting=setting, variant=variant)["score_new_train"].fill_null(1.0).to_numpy()
    return lambda rng, shape: rng.choice(scores, shape)


@pytest.mark.parametrize("n", [32, 64])
@pytest.mark.parametrize(
    "population",
    [stuck_or_learned, skewed, rarely_learned, of_figure_1("sct-v9-s2", "post"), of_figure_1("sct-v9-s7", "pre")],
    ids=["stuck or learned", "skewed", "rarely learned", "s = 2, post", "s = 7, pre"],
)
def test_the_band_covers_the_truth(population, n):
    rng, k_K, times = np.random.default_rng(1), budgets(n)[::-3], 100
    cdf = np.arange(1, 200_001) / 200_000
    many = np.sort(population(rng, 200_000))
    truth_K = np.array([many @ (cdf**k - (cdf - 1 / 200_000) ** k) for k in k_K])
    covered_K = np.zeros(len(k_K))
    for values in population(rng, (times, n)):
        band_K = best_of(sample(values), -1.0, 0.0, k_K)
        covered_K += [i.low <= true <= i.high for i, true in zip(band_K, truth_K, strict=True)]
    # 0.95 less two standard errors of 100 simulations
    assert (covered_K / times >= 0.91).all(), covered_K / times


def test_two_possible_scores_have_the_interval_of_clopper_and_pearson():
    """Two of 32 are 0, the others -1: the expected best of k is -(1 - p)^k, p the share of zeros."""
    share = beta.ppf([0.025, 0.975], [2, 3], [31, 30])
    k_K = [1, 4, 8]
    for k, found in zip(k_K, best_of(sample([0.0] * 2 + [-1.0] * 30), -1.0, 0.0, k_K), strict=True):
        # quantiles of 1,000 reweightings are off by about 0.008
        assert [1 - (-end) ** (1 / k) for end in (found.low, found.high)] == pytest.approx(share, abs=0.02)


def test_a_metric_without_bounds_leaves_the_ends_open():
    values = np.random.default_rng(0).normal(size=32)
    for found in best_of(sample(values), -inf, inf, [1, 8]):
        assert (found.low, found.high) == (-inf, inf)
        assert np.isfinite(found.estimate)


def test_fewer_effective_draws_widen_the_band():
    values = np.random.default_rng(0).normal(size=64)
    (whole,), (half,) = (best_of(sample(values, worth), -9.0, 9.0, [4]) for worth in (1.0, 0.5))
    assert half.estimate == whole.estimate
    assert half.high - half.low > 1.2 * (whole.high - whole.low)
