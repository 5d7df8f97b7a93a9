"""Importance of hyperparameters where the truth is known: one that matters, eleven that do not."""

import numpy as np
import polars as pl
import pytest

from resharpen.analysis.importance import best_tenth, divergence, importances, spread
from resharpen.analysis.pairing import Paired
from resharpen.tasks import Metric

NAMES = tuple(f"x{i}" for i in range(12))


def simulated(rng, draws):
    """A learning rate matters: the best are where it is about 0.7 of the way; warm-up has a third at zero."""
    u = rng.random((draws, 12))
    u[:, 5] = np.maximum(0, u[:, 5] - 1 / 3)
    return u, -np.abs(u[:, 0] - 0.7) + 0.1 * rng.normal(size=draws)


def test_what_matters_is_found_and_what_does_not_is_not():
    rng, times = np.random.default_rng(0), 200
    found, alarms = 0, 0
    for _ in range(times):
        u, gain = simulated(rng, 128)
        p = np.array([divergence(spread(x), best_tenth(gain)).p for x in u.T])
        found += p[0] * 12 < 0.05
        alarms += (p[1:] * 11 < 0.05).any()
    assert found >= 0.9 * times
    assert alarms <= 0.05 * times + 2 * np.sqrt(times * 0.05 * 0.95)


@pytest.mark.parametrize("draws", [96, 480])
def test_the_interval_covers_the_truth(draws):
    rng, times = np.random.default_rng(1), 200
    u, gain = simulated(rng, 400_000)
    truth = [divergence(spread(x), best_tenth(gain)).estimate for x in u.T]
    assert truth[0] > 1
    assert max(truth[1:]) < 1e-3
    hits = np.zeros(2)
    for _ in range(times):
        u, gain = simulated(rng, draws)
        for i in range(2):
            interval = divergence(spread(u[:, i]), best_tenth(gain))
            hits[i] += interval.low <= truth[i] <= interval.high
            assert (interval.low > 0) == (interval.p < 0.025)
    assert (hits / times >= 0.92).all(), hits / times


def test_the_best_in_a_fifth_of_the_range():
    """D is 4; theta_j = sqrt(2) sin(0.8 pi j) / (0.2 pi j) makes 3.5 of it in the first four terms."""
    u = (np.arange(10_000) + 0.5) / 10_000
    best = np.zeros(10_000, bool)
    best[8000::2] = True
    j = np.arange(1, 5)
    terms = 2 * (np.sin(0.8 * np.pi * j) / (0.2 * np.pi * j)) ** 2
    assert divergence(u, best).estimate == pytest.approx(terms.sum(), abs=0.01)
    assert terms.sum() == pytest.approx(3.5, abs=0.02)


def test_by_variant_the_most_important_first():
    rng = np.random.default_rng(2)
    tables = []
    for variant, lost in (("pre", 0), ("mine", 3)):
        for setting in ("a", "b"):
            u, gain = simulated(rng, 96)
            gains = [None if i < lost else float(x) for i, x in enumerate(gain)]
            columns = {"setting": setting, "variant": variant, "weights": "train", "length": 3, "new": False}
            table = pl.DataFrame({"draw": np.arange(96), "gain": gains, **dict(zip(NAMES, u.T, strict=True))})
            tables.append(table.with_columns(**{name: pl.lit(value) for name, value in columns.items()}, fixed=1.0))
    hyperparameters = dict.fromkeys(("pre", "mine"), (*NAMES, "fixed"))
    what = ("pre", ("mine",), ("a", "b"), Metric("score"), "tokens", "train", "best")
    paired = Paired(
        *what, test="", parameters={}, labels={}, hyperparameters=hyperparameters, every=pl.concat(tables), constant={}
    )
    found = importances(paired)
    assert [i.variant for i in found] == ["pre"] * 12 + ["mine"] * 12  # what is fixed cannot matter
    for first in (found[0], found[12]):
        assert first.hyperparameter == "x0"
        assert first.p < 0.001
        assert first.best == 20
        assert 0.5 < first.low < 0.7 < first.high < 0.9
    assert sum(i.p < 0.05 for i in found) == 2
