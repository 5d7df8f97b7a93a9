import numpy as np
import pytest

from resharpen.analysis.statistics import RESAMPLES, bootstrap, holm, two_sided_p


def mean(values):
    return values.mean(axis=-1)


def test_interval_of_a_mean_covers_as_it_says():
    """Over many data sets the 95% interval holds the truth about nineteen times in twenty."""
    rng, hits = np.random.default_rng(0), 0
    for _ in range(200):
        groups = list(rng.normal(0.3, 1.0, size=(20, 16)) + rng.normal(0, 1.0, size=(20, 1)))
        found = bootstrap(mean, groups, 0.0)
        hits += found.low <= 0.3 <= found.high
    assert 0.87 <= hits / 200 <= 0.98


def test_groups_are_resampled_whole():
    """Sixteen copies of one number are one piece of evidence, not sixteen."""
    rng = np.random.default_rng(1)
    centres = rng.normal(0, 1, 12)
    copied = bootstrap(mean, [np.full(16, c) for c in centres], 0.0)
    single = bootstrap(mean, [np.array([c]) for c in centres], 0.0)
    assert np.isclose(copied.low, single.low)
    assert np.isclose(copied.high, single.high)


def test_few_groups_decide_nothing():
    values = [np.full(16, 0.9)] * 2
    assert bootstrap(mean, values, 0.0).p == 2 * 2**-2
    assert bootstrap(mean, [np.full(16, 0.9)] * 6, 0.0).p == pytest.approx(2 / RESAMPLES)


def test_unequal_groups():
    found = bootstrap(mean, [np.array([1.0, 1.0, 1.0]), np.array([5.0])], 0.0)
    assert found.estimate == 2.0
    assert (found.low, found.high) == (1.0, 5.0)


def test_p_counts_both_sides():
    resampled = np.array([-1.0] * 30 + [1.0] * 970)
    assert two_sided_p(resampled, 0.0, groups=50) == pytest.approx(0.06)
    assert two_sided_p(-resampled, 0.0, groups=50) == pytest.approx(0.06)
    assert two_sided_p(np.zeros(100), 0.0, groups=50) == 1.0


def test_holm_against_its_definition():
    p = [0.001, 0.02, 0.011, 0.5]
    # sorted 0.001, 0.011, 0.02, 0.5 times 4, 3, 2, 1
    assert np.allclose(holm(p), [0.004, 0.04, 0.033, 0.5])
    assert holm([]) == []
    assert holm([0.4, 0.6]) == [0.8, 0.8]
