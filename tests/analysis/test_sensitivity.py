"""Claims under other readings: the expected best of k against enumeration and SciPy, verdicts on made-up scores."""

from itertools import combinations

import numpy as np
import polars as pl
import pytest
from made_up import as_the_paper_says, made_up_scores
from runs import doctor
from scipy.stats import beta

import resharpen as rs
from resharpen.analysis.claims.reading import (
    DEFAULT,
    Reading,
    best_of_interval,
    expected_best,
    reweighted_best,
    sum_of_best,
)
from resharpen.analysis.claims.sensitivity import READINGS, Sensitivity, cell, sensitivity
from resharpen.analysis.claims.set_complement import claims_on
from resharpen.analysis.statistics import Sample, quantile, quantile_interval
from resharpen.cli import main


def by_reading(level, draws=96, **more):
    scores = made_up_scores(level, draws=draws, **more)
    scores = scores.filter(scores["train_length"].is_in([1, 3, 4]))  # sums over all eight take seconds per reading
    found = {name: claims_on(scores, "9", 1.0, 1.0, reading) for name, reading in READINGS.items()}
    return [Sensitivity(dict(zip(found, of, strict=True))) for of in zip(*found.values(), strict=True)]


@pytest.mark.parametrize("k", [1, 3, 7])
def test_the_expected_best_is_the_mean_over_all_subsets(k):
    values = np.random.default_rng(0).uniform(size=7)
    assert expected_best(values, k) == pytest.approx(np.mean([min(some) for some in combinations(values, k)]))


def test_the_best_of_more_models_than_there_are_is_undefined():
    assert np.isnan(expected_best(np.ones(7), 8))
    sample = Sample(np.linspace(0, 1, 16), 16)
    assert best_of_interval(sample, 17, 0.5).p == 1
    assert np.isnan(sum_of_best([(1.0, "a", sample)], 17, 0.5).estimate)


@pytest.mark.parametrize("last", [False, True])
def test_a_reweighted_best_is_that_of_a_discrete_distribution(last):
    rng = np.random.default_rng(1)
    values, weights = rng.uniform(0.2, 0.8, 5), rng.dirichlet(np.ones(6), 1)
    found = reweighted_best(values, 2, weights[:, :5], weights[:, 5], float(last), last)
    every = np.append(values, float(last))
    assert found == pytest.approx(np.sum(np.minimum.outer(every, every) * np.outer(weights[0], weights[0])))


def test_the_band_of_two_possible_scores_is_clopper_and_pearson_s():
    """The best of k is 0.3 unless all k are 0.9: 0.3 + 0.6 (1 - share)^k."""
    sample, k = Sample(np.repeat([0.3, 0.9], [5, 35]), 40), 4
    found = best_of_interval(sample, k, 0.5)
    # the unseen draw is at 1 for the upper end, and the share of 0.3 is then Beta(5, 36)
    shares = beta(5, 36).rvs(200_000, random_state=0)
    seen = beta(35, 1).rvs(200_000, random_state=1)  # what of the rest is at 0.9 rather than 1
    rest = 1 - shares
    upper = 0.3 * (1 - rest**k) + 0.9 * (rest**k - (rest * (1 - seen)) ** k) + (rest * (1 - seen)) ** k
    assert found.high == pytest.approx(np.quantile(upper, 0.975), abs=0.015)
    assert found.low < found.estimate < found.high


def test_a_p_value_below_the_level_is_a_threshold_outside_the_band():
    sample = Sample(np.random.default_rng(3).uniform(0.1, 0.9, 60), 60)
    for threshold in np.linspace(0.0, 0.6, 61):
        found = best_of_interval(sample, 8, threshold)
        assert (found.p < 0.05) == (not found.low <= threshold <= found.high)


def test_a_sum_of_best_covers_and_needs_many_draws():
    """Differences of best values of independent draws: 95% intervals miss in about one of twenty samples."""
    rng, k, hits = np.random.default_rng(4), 8, 0
    truth = 1 / (k + 1) - 0.5 / (k + 1)
    for _ in range(100):
        terms = [(1.0, "a", Sample(rng.uniform(size=60), 60)), (-1.0, "b", Sample(rng.uniform(0, 0.5, 60), 60))]
        found = sum_of_best(terms, k, truth)
        hits += found.low <= truth <= found.high
        assert (found.p < 0.05) == (not found.low <= truth <= found.high)
    assert hits >= 90
    few = [(1.0, "a", Sample(rng.uniform(size=96), 96))]
    assert sum_of_best(few, 48, 0.0).p == 1, "96 draws say nothing certain on the best of 48"


def test_more_is_better_is_the_mirror_image():
    values = np.random.default_rng(5).uniform(0.6, 1.0, 64)
    for reading in (DEFAULT, Reading(best_of=8)):
        up, down = reading.of_higher(Sample(values, 64), 0.95), reading.of(Sample(1 - values, 64), 0.05)
        assert up.estimate == pytest.approx(1 - down.estimate)
        assert (up.low, up.high, up.p) == pytest.approx((1 - down.high, 1 - down.low, down.p))
    assert DEFAULT.of(Sample(values, 64), 0.5) == quantile_interval(Sample(values, 64), 0.1, 0.5)


def test_what_the_paper_saw_holds_by_every_reading_that_draws_can_decide():
    for of in by_reading(as_the_paper_says):
        assert of.verdicts()["holds"][0] == "default"
        # 96 draws cannot exclude that one model in fifty is good; one in twenty they can, but not in many cells at once
        assert set(of.verdicts().get("undecided at this scale", ())) <= {"best of 48", "2%", "5%"}
        assert of.changing() == []


def test_a_verdict_that_depends_on_the_threshold_is_named():
    of = by_reading(lambda p, s: 0.045 if p == "post" else as_the_paper_says(p, s))[0]
    assert of.by_reading["t = 0.1"].verdict == "holds"
    assert of.by_reading["t = 0.03"].verdict == "does not hold"
    assert "does not hold (t = 0.03)." in of.depends()
    default, other = of.changing()[0]
    assert default.what == "post, s = 3: best TVD on new lengths"
    assert set(other) == {"t = 0.03"}


def test_too_few_models_for_the_best_of_48_are_no_verdict():
    of = by_reading(as_the_paper_says, draws=40)
    assert [cell(x.by_reading["best of 48"]) for x in of] == ["too few models"] * 3
    assert all("best of 48" not in names for x in of for names in x.verdicts().values())


def test_checkpoints_of_the_reading_are_used(tiny, tmp_path):
    factor = {"best": 1.0, "best-trained": 0.7, "last": 0.4}
    scaled = pl.col("value") * pl.col("selection").replace_strict(factor, return_dtype=pl.Float64)
    doctor(rs.run(tiny, tmp_path / "run", workers=1), "lengths", lambda table: table.with_columns(value=scaled))
    run = rs.load(tmp_path / "run")
    rows = run.table("lengths").filter(weights="train", length=3, metric="tvd")
    rows = rows.filter(rows["model"].str.starts_with("sct-v4-s2/peri/"))
    expected = {name: quantile(rows.filter(selection=name)["value"].to_numpy(), 0.1) for name in set(rows["selection"])}
    assert len(set(expected.values())) == 3
    (second,) = [of for of in sensitivity(run) if of.claim.number == 2]
    for name, selection in (("default", "best"), ("last", "last"), ("best-trained", "best-trained")):
        (finding,) = [f for f in second.by_reading[name].findings if f.what.startswith("peri, s = 2")]
        assert finding.interval.estimate == pytest.approx(expected[selection])


def test_the_command_prints_every_reading(tiny, tmp_path, capsys):
    rs.run(tiny, tmp_path / "run", workers=1)
    main(["claims", str(tmp_path / "run"), "--sensitivity"])
    out = " ".join(capsys.readouterr().out.split())
    assert "Claims by reading" in out
    assert "on the reading" in out
