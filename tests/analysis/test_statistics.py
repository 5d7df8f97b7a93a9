"""Intervals against enumeration and closed forms; their coverage by simulation on scores like ours."""

from functools import cache
from itertools import count
from math import comb, inf, isnan

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from resharpen.analysis import statistics
from resharpen.analysis.statistics import (
    Interval,
    Sample,
    at_least_p,
    binomial_tails,
    holm,
    intraclass_correlation,
    most_below,
    quantile_interval,
    reweighted,
    reweightings,
    sum_interval,
)


def sample(values, worth=1.0):
    values = np.asarray(values, float)
    return Sample(values, worth * len(values))


# One quantile


def tails_by_enumeration(n, q):
    pmf = [comb(n, k) * q**k * (1 - q) ** (n - k) for k in range(n + 1)]
    return [sum(pmf[: k + 1]) for k in range(n + 1)], [sum(pmf[k:]) for k in range(n + 1)]


@pytest.mark.parametrize("q", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("n", [1, 5, 6, 32, 36, 80])
def test_exact_interval_against_enumeration(n, q):
    at_most, at_least = tails_by_enumeration(n, q)
    assert np.allclose(binomial_tails(n, n, q), (at_most, at_least), rtol=1e-10)
    # values 1..n, so that x_(r) = r; of all pairs the innermost whose tails are each below 0.025
    low = max((r for r in range(1, n + 1) if at_most[r - 1] < 0.025), default=-inf)
    high = min((s for s in range(1, n + 1) if at_least[s] < 0.025), default=inf)
    found = quantile_interval(sample(np.random.default_rng(0).permutation(n) + 1), q, 0.0)
    assert (found.low, found.high) == (low, high)
    assert found.low <= found.estimate <= found.high


def test_too_few_draws_leave_an_end_open():
    """0.9^35 = 0.025033 and 0.9^36 = 0.0225; 2^-5 = 0.031 and 2^-6 = 0.016."""
    assert quantile_interval(sample(np.ones(35)), 0.1, 0.0).low == -inf
    assert quantile_interval(sample(np.ones(35)), 0.1, 0.0).p == pytest.approx(2 * 0.9**35)
    assert quantile_interval(sample(np.ones(36)), 0.1, 0.0).low == 1.0
    assert quantile_interval(sample(np.ones(5)), 0.5, 0.0).p == 2 * 2**-5
    assert quantile_interval(sample(np.ones(6)), 0.5, 0.0).p == 2 * 2**-6


@given(
    values=st.lists(st.integers(0, 12), min_size=1, max_size=60),
    threshold=st.integers(-1, 13),
    q=st.sampled_from([0.1, 0.5, 0.9]),
    worth=st.sampled_from([1.0, 0.7, 0.25]),
)
def test_an_interval_leaves_out_a_threshold_if_and_only_if_p_is_below_5_percent(values, threshold, q, worth):
    found = quantile_interval(sample(values, worth), q, threshold)
    assert (found.p < 0.05) == (not found.low <= threshold <= found.high)
    mirrored = quantile_interval(sample(np.negative(values), worth), 1 - q, -threshold)
    assert mirrored.p == pytest.approx(found.p)
    assert (mirrored.low, mirrored.high) == (-found.high, -found.low)


def test_draws_that_equal_the_threshold_speak_for_neither_side():
    assert quantile_interval(sample([0.0] * 50), 0.5, 0.0).p == 1.0
    # six below, none above, the others equal: P(B >= 6) of 20 is large
    assert quantile_interval(sample([-1.0] * 6 + [0.0] * 14), 0.5, 0.0).p == 1.0


def test_fewer_effective_draws_widen_the_interval():
    """Half as many effective draws as there are: as if every value had been seen twice."""
    values = np.random.default_rng(0).normal(size=40)
    twice = quantile_interval(sample(np.repeat(values, 2), worth=0.5), 0.5, 0.3)
    once = quantile_interval(sample(values), 0.5, 0.3)
    assert twice.p == pytest.approx(once.p)
    assert (twice.low, twice.high) == (once.low, once.high)


# Scores like ours: learned, half learned, stuck, diverged; BEMA close to them, or not moved yet


def set_complement_like(rng, shape):
    kind = rng.choice(4, p=[0.45, 0.2, 0.3, 0.05], size=shape)
    stuck = rng.beta(60, 60, shape)
    train = np.choose(kind, [rng.beta(1, 40, shape), rng.beta(2, 5, shape), stuck, np.ones(shape)])
    bema = np.clip(train * np.exp(0.3 * rng.normal(size=shape)), 0, 1)
    bema = np.where(rng.random(shape) < 0.3, rng.beta(60, 60, shape), bema)
    return train, np.where(kind == 3, 1.0, bema)


def near_zero(rng, shape):
    train = np.minimum(1, np.exp(rng.normal(-4, 1.5, shape)))
    return train, np.minimum(1, train * np.exp(0.3 * rng.normal(size=shape) - 0.1))


def two_lumps(rng, shape):
    train = np.where(rng.random(shape) < 0.2, rng.beta(2, 30, shape), rng.beta(20, 30, shape))
    return train, np.where(rng.random(shape) < 0.15, rng.beta(20, 30, shape), 0.97 * train)


def with_point_masses(rng, shape):
    kind = rng.choice(3, p=[0.04, 0.1, 0.86], size=shape)
    train = np.choose(kind, [np.zeros(shape), np.ones(shape), rng.beta(0.7, 2, shape)])
    moved = np.where(rng.random(shape) < 0.33, 0.0, 0.5 * rng.normal(size=shape))
    return train, np.clip(train * np.exp(moved), 0, 1)


def language_like(rng, shape):
    train = rng.beta(8, 20, shape)
    return train, np.clip(train + 0.03 * rng.normal(size=shape), 0, 1)


POPULATIONS = [set_complement_like, near_zero, two_lumps, with_point_masses, language_like]
SIMULATIONS = {32: 1500, 80: 1000, 96: 1000, 320: 500}


@cache
def true_values(population):
    """The 10% quantiles with training weights and with BEMA, and the paired median difference."""
    train, bema = population(np.random.default_rng(99), 1_000_000)
    return np.quantile(train, 0.1), np.quantile(bema, 0.1), np.median(bema - train)


def coverage(intervals, truth):
    """Of intervals whose threshold is the truth, so that a p-value below 0.05 is a false alarm."""
    covered = np.array([interval.low <= truth <= interval.high for interval in intervals])
    alarms = np.array([interval.p < 0.05 for interval in intervals])
    assert (covered == ~alarms).all()
    return covered.mean()


@pytest.fixture
def fewer_reweightings(monkeypatch):
    """Sixteen sets of them in turn, so that the error of one does not enter all simulations alike."""
    made, turn = cache(statistics.reweightings), count()
    monkeypatch.setattr(statistics, "RESAMPLES", 200)
    monkeypatch.setattr(statistics, "reweightings", lambda n, effective, _: made(n, effective, next(turn) % 16))


@pytest.mark.parametrize("population", POPULATIONS)
def test_coverage_of_one_quantile(population):
    best, _, median = true_values(population)
    rng = np.random.default_rng(0)
    for n in (32, 80, 96, 320):
        data = [population(rng, n) for _ in range(400)]
        of_best = [quantile_interval(sample(train), 0.1, best) for train, _ in data]
        assert 0.94 <= coverage(of_best, best) <= 0.995
        of_median = [quantile_interval(sample(bema - train), 0.5, median) for train, bema in data]
        assert (
            coverage(of_median, median) >= 0.94
        )  # one where a third of the differences are exactly 0, as is the median


@pytest.mark.parametrize("population", POPULATIONS)
@pytest.mark.usefixtures("fewer_reweightings")
def test_coverage_of_a_paired_difference_of_quantiles(population):
    best, bema_best, _ = true_values(population)
    truth, rng = bema_best - best, np.random.default_rng(0)
    for n, simulations in SIMULATIONS.items():
        data = (map(sample, population(rng, n)) for _ in range(simulations // 2))
        found = [sum_interval([(1, "a", bema), (-1, "a", train)], 0.1, truth) for train, bema in data]
        assert coverage(found, truth) >= 0.93


@pytest.mark.parametrize("population", [near_zero, two_lumps, language_like])
@pytest.mark.usefixtures("fewer_reweightings")
def test_coverage_of_a_difference_between_settings(population):
    """The second setting has half the scores of the first."""
    truth, rng = true_values(population)[0] / 2, np.random.default_rng(0)
    for n, simulations in SIMULATIONS.items():
        data = [(population(rng, n)[0], population(rng, n)[0] / 2) for _ in range(simulations)]
        found = [sum_interval([(1, "a", sample(a)), (-1, "b", sample(b))], 0.1, truth) for a, b in data]
        assert 0.93 <= coverage(found, truth) <= 0.99


@pytest.mark.parametrize("population", [near_zero, language_like])
@pytest.mark.usefixtures("fewer_reweightings")
def test_coverage_of_a_mean_of_medians(population):
    truth, rng = true_values(population)[2], np.random.default_rng(0)
    for n, simulations in ((16, 500), (32, 500), (80, 250)):
        found = []
        for _ in range(simulations):
            settings = [population(rng, n) for _ in range(4)]
            terms = [(0.25, str(s), sample(bema - train)) for s, (train, bema) in enumerate(settings)]
            found.append(sum_interval(terms, 0.5, truth))
        assert coverage(found, truth) >= 0.93


# Sums of quantiles


def test_a_quantile_of_equal_weights_is_hazens():
    values = np.random.default_rng(0).normal(size=31)
    for q in (0.1, 0.5, 0.9):
        found = reweighted(values, q, np.full((2, 31), 1 / 31), np.zeros(2), adds=True)
        assert np.allclose(found, np.quantile(values, q, method="hazen"))


def test_the_unseen_draw_is_once_below_and_once_above():
    values, drawn, unseen = np.arange(10.0), np.full((2, 10), 0.08), np.full(2, 0.2)
    adds = reweighted(values, 0.5, drawn, unseen, adds=True)
    # of ten draws at 0.08 each, 0.3 or 0.5 is to be reached: after 3.75 - 0.5, or 6.25 - 0.5 of them
    assert sorted(adds.tolist()) == pytest.approx([3.25, 5.75])
    assert reweighted(values, 0.5, drawn, unseen, adds=False).tolist() == adds[::-1].tolist()


def test_effective_draws_make_shares_vary_as_they_should():
    for effective in (80.0, 20.0):
        drawn, _ = reweightings(80, effective, 0)
        share = drawn[:, :24].sum(1)
        assert share.mean() == pytest.approx(0.3, abs=0.01)
        assert share.var() == pytest.approx(0.21 / effective, rel=0.15)


def test_settings_vary_for_themselves():
    """The variance of a sum over settings is the sum of theirs; within a setting draws go together."""
    width = lambda found: found.high - found.low  # noqa: E731
    values = sample(np.random.default_rng(0).normal(size=200))
    one = width(sum_interval([(1, "a", values)], 0.5, 0.0))
    apart = sum_interval([(1, "a", values), (-1, "b", values)], 0.5, 0.0)
    assert width(apart) == pytest.approx(np.sqrt(2) * one, rel=0.05)
    assert (apart.estimate, apart.p) == (0.0, 1.0)
    assert width(sum_interval([(1, "a", values), (-1, "a", values)], 0.5, 0.0)) < one / 3  # the unseen draw
    few = sum_interval([(1, "a", Sample(values.values_N, 50.0))], 0.5, 0.0)
    assert width(few) == pytest.approx(2 * one, rel=0.15)


def test_too_few_draws_have_no_interval_of_a_sum():
    """0.9^31 = 0.038, 0.9^32 = 0.034."""
    values = np.random.default_rng(0).uniform(size=32)
    few = sum_interval([(1, "a", sample(values[1:])), (-1, "b", sample(values + 9))], 0.1, 0.0)
    assert (few.low, few.high, few.p) == (-inf, inf, 1.0)
    enough = sum_interval([(1, "a", sample(values)), (-1, "b", sample(values + 9))], 0.1, 0.0)
    assert enough.high < 0
    assert sum_interval([(1, "a", sample(np.ones(32)))], 0.1, 1.0).p == 1.0  # all equal


# The share of numbers that lie below


def test_most_below_against_its_definition():
    p_values = [0.3, 0.001, 0.004, 0.02, 0.2]
    in_order = sorted(p_values)
    expected = [min((5 - u + 1) / (j - u + 1) * in_order[j - 1] for j in range(u, 6)) for u in range(1, 6)]
    assert np.allclose(at_least_p(np.array(p_values)), expected)
    found = most_below([Interval(-1.0, 0.0, 0.0, 2 * p) for p in p_values], 0.0)
    assert (found.estimate, found.low, found.high) == (1.0, np.mean(np.array(expected) < 0.025), 1.0)
    assert found.p == pytest.approx(2 * expected[2])  # three are most of five


@given(st.lists(st.tuples(st.sampled_from([-1.0, 0.0, 1.0]), st.floats(1e-6, 1)), min_size=1, max_size=12))
@example([(-1.0, 1.0), *[(0.0, 1 / 64)] * 4])  # 1 - 4/5 is less than 1/5
def test_a_share_and_its_p_value_agree(cells):
    found = most_below([Interval(estimate, 0.0, 0.0, p) for estimate, p in cells], 0.0)
    assert (found.p < 0.05) == (not found.low <= 0.5 <= found.high)
    assert found.low <= found.estimate <= found.high


def test_half_of_the_settings_are_not_most():
    """Sixteen of 32 are beyond doubt, the others lie on the threshold: then `most` is a false alarm."""
    rng, alarms = np.random.default_rng(0), 0
    for _ in range(1000):
        sure = [Interval(-1.0, 0.0, 0.0, 1e-9)] * 16
        on_it = [Interval(rng.choice([-1.0, 1.0]), 0.0, 0.0, rng.uniform()) for _ in range(16)]
        alarms += most_below(sure + on_it, 0.0).p < 0.05
    assert alarms / 1000 <= 0.04


# What draws of a group have in common


def grouped(rng, correlation, groups, cells=1, size=16):
    """Normal scores, [N, C], whose cells correlate by 0.5, and the group of each draw."""
    shared = lambda n: rng.normal(size=(n, 1)) * np.sqrt(0.5) + rng.normal(size=(n, cells)) * np.sqrt(0.5)  # noqa: E731
    group = np.repeat(np.arange(groups), size)
    return np.sqrt(correlation) * shared(groups)[group] + np.sqrt(1 - correlation) * shared(len(group)), group


def test_intraclass_correlation_against_the_textbook():
    """Equal groups of m: (B - W) / (B + (m - 1) W), by hand; its variance 2 (km - 1) / (m^2 k (m - 1) (k - 1))."""
    values, group = grouped(np.random.default_rng(0), 0.2, groups=6)
    ranks = (values.argsort(0).argsort(0) + 1).reshape(6, 16)
    between = 16 * sum((row.mean() - ranks.mean()) ** 2 for row in ranks) / 5
    within = sum(((row - row.mean()) ** 2).sum() for row in ranks) / (6 * 15)
    found = intraclass_correlation([(values, group)])
    assert found.estimate == pytest.approx((between - within) / (between + 15 * within))
    assert found.error == pytest.approx(np.sqrt(2 * 95 / (16**2 * 6 * 15 * 5)))
    twice = intraclass_correlation([(np.hstack([values, values]), group), (values, group)])
    assert (twice.estimate, twice.error) == pytest.approx((found.estimate, found.error / np.sqrt(2)))


@pytest.mark.parametrize("correlation", [0.0, 0.3])
def test_intraclass_correlation_of_known_scores(correlation):
    """The ranks of normal scores that correlate by r correlate by 6/pi asin(r/2)."""
    rng = np.random.default_rng(0)
    found = [intraclass_correlation([grouped(rng, correlation, groups=12, cells=4)]) for _ in range(400)]
    estimates = np.array([one.estimate for one in found])
    assert estimates.mean() == pytest.approx(6 / np.pi * np.arcsin(correlation / 2), abs=0.02)
    if correlation == 0:
        assert estimates.std() == pytest.approx(np.mean([one.error for one in found]), rel=0.12)
        assert np.mean([one.worth(16) < 1 for one in found]) <= 0.09
    else:
        assert all(one.worth(16) == 1 / (1 + 15 * one.estimate) for one in found if one.estimate > 0.1)


def test_one_group_or_equal_scores_show_no_correlation():
    for values, group in ((np.arange(16.0)[:, None], np.zeros(16, int)), (np.ones((32, 2)), np.arange(32) // 16)):
        found = intraclass_correlation([(values, group)])
        assert isnan(found.estimate)
        assert found.worth(16) == 1.0


def test_dependent_draws_are_covered_by_their_effective_number():
    rng, worth = np.random.default_rng(0), 1 / (1 + 15 * 0.3)
    data = [grouped(rng, 0.3, groups=20)[0][:, 0] for _ in range(400)]
    assert coverage([quantile_interval(sample(values), 0.5, 0.0) for values in data], 0.0) < 0.8
    assert 0.93 <= coverage([quantile_interval(sample(values, worth), 0.5, 0.0) for values in data], 0.0) <= 0.99


def test_holm_against_its_definition():
    p = [0.001, 0.02, 0.011, 0.5]
    # sorted 0.001, 0.011, 0.02, 0.5 times 4, 3, 2, 1
    assert np.allclose(holm(p), [0.004, 0.04, 0.033, 0.5])
    assert holm([]) == []
    assert holm([0.4, 0.6]) == [0.8, 0.8]


def test_equal_draws_differ_from_nothing_by_rounding_alone():
    """0.1 + 0.2 - 0.3 is 5.6e-17 and not a finding."""
    terms = [(w, "s", Sample(np.full(64, x), 64)) for w, x in ((1.0, 0.1), (1.0, 0.2), (-1.0, 0.3))]
    found = sum_interval(terms, 0.1, 0.0)
    assert found.estimate != 0
    assert found.p > 0.05
    assert found.low < 0 < found.high
    assert sum_interval(terms[:1], 0.1, 0.0).p < 1e-6
