"""Comparisons on made-up scores whose truth is known, and on real runs."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from resharpen.analysis.compare import EVERY, compare, compare_pairs
from resharpen.analysis.pairing import Paired
from resharpen.analysis.statistics import Interval, Sample, share_interval
from resharpen.analysis.verdict import judge, judged, more_models
from resharpen.errors import UserError
from resharpen.experiments.running.runner import run
from resharpen.tasks import Metric

TVD, ACCURACY = Metric("TVD", lower_is_better=True, worst=1.0), Metric("accuracy")


def made_up(values, metric=TVD, lengths=(2, 4), settings=("a",)):
    """(setting, variant) -> values by draw; the same at each length, trained up to 2."""
    sign = -1 if metric.lower_is_better else 1
    variants = list(dict.fromkeys(variant for _, variant in values))
    tables = [
        pl.DataFrame({"draw": np.arange(len(x)), "value": x}, strict=False, nan_to_null=True).with_columns(
            setting=pl.lit(setting),
            variant=pl.lit(variant),
            weights=pl.lit(weights),
            length=pl.lit(length),
            new=pl.lit(length > 2),
            diverged_at=pl.lit(None, pl.Int64),
        )
        for (setting, variant), x in values.items()
        for weights in ("train", "bema")
        for length in lengths
    ]
    rows = pl.concat(tables).with_columns(gain=sign * pl.col("value"))
    none = dict.fromkeys(variants, ())
    what = (variants[0], tuple(variants[1:]), settings, metric, "tokens", "train", "best")
    return Paired(*what, test="", parameters={}, labels={}, hyperparameters=none, every=rows, constant={})


def tvds(rng, shape):
    kind = rng.choice(3, p=[0.4, 0.55, 0.05], size=shape)
    return np.choose(kind, [rng.beta(2, 30, shape), rng.beta(20, 30, shape), np.ones(shape)])


def pairs(rng, draws, effect=0.0):
    """Two variants that share much of what a draw brings; the second better by `effect`, in a pair as likely to be
    above that as below."""
    base = tvds(rng, draws)
    first, second = (base + 0.03 * rng.normal(size=draws) for _ in range(2))
    return {("a", "base"): first, ("a", "mine"): second - effect}


@pytest.mark.parametrize("draws", [32, 96])
def test_equal_variants_are_told_apart_in_less_than_one_case_of_twenty(draws):
    rng, times, alarms = np.random.default_rng(draws), 80, 0
    for _ in range(times):
        (effect,) = compare_pairs(made_up(pairs(rng, draws), lengths=(2,))).effects
        alarms += np.isin([effect.median.verdict, effect.best.verdict], ["helps", "hurts"])
    assert (np.array(alarms) <= 0.05 * times + 2 * np.sqrt(times * 0.05 * 0.95)).all(), alarms


def test_a_known_effect_is_found_and_its_interval_covers_it():
    rng, times, covered, verdicts = np.random.default_rng(0), 80, 0, []
    for _ in range(times):
        found = compare_pairs(made_up(pairs(rng, 64, effect=0.05), lengths=(2,)))
        median = found.headlines()[0].median
        covered += median.interval.low <= 0.05 <= median.interval.high
        verdicts.append(median.verdict)
    assert covered >= 0.92 * times
    assert verdicts.count("helps") >= 0.95 * times


def test_no_difference_is_said_where_the_margin_holds_it_and_only_there():
    rng = np.random.default_rng(0)
    same = compare_pairs(made_up(pairs(rng, 256)), margin=0.05).headlines()[0]
    assert same.median.verdict == "no difference"
    few = compare_pairs(made_up(pairs(rng, 16)), margin=0.005).headlines()[0]
    assert few.median.verdict == "undecided"
    assert few.median.more
    # outside the margin by a little: to call that no difference is an error, made in less than one case of twenty
    wrong = [compare_pairs(made_up(pairs(rng, 64, 0.021), lengths=(2,)), 0.02).headlines()[0] for _ in range(40)]
    assert sum(effect.median.verdict == "no difference" for effect in wrong) <= 2


def test_direction_comes_from_the_task():
    low, high = np.full(40, 0.2), np.full(40, 0.6)
    for metric, verdict in ((TVD, "hurts"), (ACCURACY, "helps")):
        effect = compare_pairs(made_up({("a", "base"): low, ("a", "mine"): high}, metric)).headlines()[0]
        assert effect.median.verdict == effect.best.verdict == verdict
        assert abs(effect.median.interval.estimate) == pytest.approx(0.4)
        assert effect.wins.estimate == (verdict == "helps")


@pytest.mark.parametrize(
    ("metric", "value", "bound"), [(TVD, 0.2, 0.0), (ACCURACY, 0.6, 1.0), (Metric("reward", best=np.inf), 0.6, np.inf)]
)
def test_the_band_of_the_best_reaches_toward_the_best_possible_value(metric, value, bound):
    """40 equal values leave a share p of better models with (1 - p)^40 = 0.025, and a best of 8 is none of them with
    probability (1 - p)^8."""
    same = np.full(40, value)
    found = compare_pairs(made_up({("a", "base"): same, ("a", "mine"): same}, metric))
    curve = found.best_of[0]
    interval = curve.value[curve.k.index(8)]
    end = bound - (bound - value) * 0.025 ** (8 / 40) if np.isfinite(bound) else bound
    assert (interval.low if metric.lower_is_better else interval.high) == pytest.approx(end, abs=0.03)
    assert interval.estimate == pytest.approx(value)


def test_lost_models_rank_worst():
    good, lost = np.full(40, 0.1), np.where(np.arange(40) % 4 > 0, np.nan, 0.0)
    found = compare_pairs(made_up({("a", "base"): good, ("a", "mine"): lost}))
    assert found.headlines()[0].median.verdict == "hurts"
    assert found.headlines()[0].wins.estimate == 10 / 40
    curve = next(curve for curve in found.best_of if curve.variant == "mine")
    assert curve.value[0].estimate == pytest.approx(30 / 40)


def test_settings_are_shown_apart_and_in_the_mean():
    rng = np.random.default_rng(0)
    values = {
        (setting, variant): x
        for setting, effect in (("a", 0.2), ("b", 0.0))
        for (_, variant), x in pairs(rng, 200, effect).items()
    }
    found = compare_pairs(made_up(values, settings=("a", "b")))
    median = {effect.setting: effect.median for effect in found.effects if effect.lengths == "new"}
    assert list(median) == ["a", "b", EVERY]
    assert [median[name].verdict for name in median] == ["helps", "no difference", "helps"]
    assert median[EVERY].interval.estimate == pytest.approx(0.1, abs=0.01)
    assert found.headlines()[0].setting == EVERY
    assert "mine against base on new lengths, mean of settings: median helps" in found._repr_html_()
    assert {(at.setting, at.length, at.new) for at in found.at_lengths} == {
        (s, length, length > 2) for s in "ab" for length in (2, 4)
    }


def test_the_number_of_models_that_it_takes():
    """Half-width 0.1 with 64 models and a gain of 0.05: (1.96 + 0.84)^2 / 1.96^2 * (0.1 / 0.05)^2 = 8.2 times as many;
    that many with the same gain decide it."""
    interval = Interval(0.05, -0.05, 0.15, 0.3)
    more = more_models(interval, 0.02, 64, tests=1)
    assert more == 464  # 523.3 in all, to a whole group more
    reach = 0.1 * np.sqrt(64 / (64 + more))
    assert judge(Interval(0.05, 0.05 - reach, 0.05 + reach, 0.01), 0.01, 0.02) == "helps"
    assert more_models(interval, 0.02, 64, tests=8) > more
    # a gain of nothing has to clear both ends of the margin: (1.96 + 1.28)^2 / 1.96^2 * 4 = 10.9 times as many
    assert more_models(Interval(0.0, -0.1, 0.1, 1.0), 0.05, 64, tests=1) == 640
    assert more_models(Interval(0.0, -np.inf, 0.1, 1.0), 0.05, 5, tests=1) is None


def test_a_small_effect_among_many_tests_is_undecided():
    one = Interval(0.05, 0.01, 0.09, 0.02)
    assert [gain.verdict for gain in judged([one], [64], 0.02)] == ["helps"]
    nothing = Interval(0.0, -0.1, 0.1, 0.9)
    assert judged([one, *[nothing] * 9], [64] * 10, 0.02)[0].verdict == "undecided"


def test_win_rates_cover_and_ties_are_half():
    ties = share_interval([Sample(np.zeros(50), 50.0)])
    assert (ties.estimate, ties.p) == (0.5, 1.0)
    rng, hits = np.random.default_rng(0), 0
    for _ in range(400):
        gains = [Sample(rng.choice([-1.0, 0.0, 1.0], p=p, size=40), 40.0) for p in ([0.2, 0.2, 0.6], [0.5, 0.1, 0.4])]
        found = share_interval(gains)
        assert (found.p < 0.05) == (not found.low <= 0.5 <= found.high)
        hits += found.low <= 0.575 <= found.high
    assert hits >= 0.95 * 400


def test_runs_pair_if_they_differ_in_the_variant_alone(tiny, tmp_path):
    a = run(tiny, tmp_path / "a", workers=1)
    b = run(replace(tiny, variants=["peri", "none"]), tmp_path / "b", workers=1)
    found = compare(a, other=b)
    assert (found.baseline, found.variants) == ("pre", ("peri", "peri@b", "none"))
    again, same = ([e for e in found.effects if e.variant == name] for name in ("peri@b", "peri"))
    assert [replace(effect, variant="peri") for effect in again] == same
    assert compare(a, ["peri@b"], b, baseline="peri").headlines()[0].wins.estimate == 0.5
    for change in ({"seed": 1}, {"steps": 13}, {"checkpoints": 2}):
        c = run(replace(tiny, **change), tmp_path / str(change), workers=1)
        with pytest.raises(UserError, match=f"{next(iter(change))}: "):
            compare(a, other=c)
    wider = [replace(setting, model=replace(setting.model, d=5)) for setting in tiny.settings]
    with pytest.raises(UserError, match=r"model\.d: 3 -> 5"):
        compare(a, other=run(replace(tiny, settings=tuple(wider)), tmp_path / "wider", workers=1))
    fewer = run(replace(tiny, settings=tiny.settings[:1]), tmp_path / "fewer", workers=1)
    assert compare(a, other=fewer).settings == ("sct-v4-s1",)
    other = run(replace(tiny, settings=(replace(tiny.settings[0], train_length=3),)), tmp_path / "o", workers=1)
    with pytest.raises(UserError, match="no setting in common"):
        compare(a, other=other)


def test_what_is_not_there_is_said(tiny, tmp_path):
    a = run(tiny, tmp_path / "a", workers=1)
    with pytest.raises(UserError, match="unknown variant 'post'"):
        compare(a, ["post"])
    with pytest.raises(UserError, match="margin"):
        compare(a, margin=0.0)
    alone = run(replace(tiny, variants=["pre"]), tmp_path / "b", workers=1)
    with pytest.raises(UserError, match="has no variant to compare"):
        compare(alone)


def test_the_spec_names_the_baseline_and_may_change_its_mind(tiny, tmp_path):
    assert compare(run(tiny, tmp_path / "a", workers=1)).baseline == "pre"
    named = run(replace(tiny, baseline="peri"), tmp_path / "a", workers=1)
    assert compare(named).baseline == "peri"
    assert compare(run(tiny, tmp_path / "a", workers=1)).baseline == "pre"
