"""The error of the report set in simulation, and the best constant against enumeration and linear programs."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from scipy.optimize import linprog

import resharpen as rs
from resharpen.analysis.compare import compare
from resharpen.analysis.report_set import Constant, of_best, of_median, shifts, widened
from resharpen.analysis.statistics import Interval, Sample, quantile_interval
from resharpen.analysis.verdict import judged
from resharpen.errors import UserError
from resharpen.experiments.running.runner import run
from resharpen.metrics import jackknife_error, mean_by_length, means_without
from resharpen.tasks import Copy, Dyck, MaxRetrieval, SetComplement, task
from resharpen.tasks.blocks import BLOCKS, by_length_without
from resharpen.tasks.task import Task
from resharpen.tasks.trivial import best_for_tvd, constants, trivial_values

# ---- the report set ----------------------------------------------------------------------------------------------


def simulated(rng, draws, sequences, luck, effect):
    """Rows of two variants: what a draw brings, what a sequence means for the second variant (the same for all draws),
    and noise of each model on each sequence."""
    base = 0.4 + 0.1 * rng.normal(size=(draws, 1)) + 0.3 * rng.normal(size=(draws, sequences))
    gain = effect + 0.05 * rng.normal(size=(draws, 1)) + luck * rng.normal(size=sequences)
    mine = base + gain + 0.1 * rng.normal(size=(draws, sequences))
    block = np.arange(sequences) % BLOCKS
    tables = []
    for variant, x in (("base", base), ("mine", mine)):
        without = np.stack([x[:, block != k].mean(1) for k in range(BLOCKS)], axis=1)
        columns = {"draw": np.arange(draws), "value": x.mean(1), "without": without.tolist()}
        tables.append(pl.DataFrame(columns).with_columns(variant=pl.lit(variant), setting=pl.lit("a")))
    return pl.concat(tables), Sample((mine - base).mean(1), float(draws))


@pytest.mark.parametrize("sequences", [40, 200])
def test_widened_intervals_cover_95_percent_where_luck_is_shared(sequences):
    rng, times, covered, narrow = np.random.default_rng(sequences), 400, 0, 0
    for _ in range(times):
        rows, gains = simulated(rng, 48, sequences, luck=0.3, effect=0.1)
        moved = shifts(rows, ["setting", "variant"], 1)
        error = of_median(moved, [(("a", "mine"), ("a", "base"), gains)])
        interval = quantile_interval(gains, 0.5, 0.0)
        wide = widened(interval, error)
        assert (wide.p < 0.05) == (not wide.low <= 0 <= wide.high)
        covered += wide.low <= 0.1 <= wide.high
        narrow += interval.low <= 0.1 <= interval.high
    assert 0.93 <= covered / times <= 0.985, covered / times
    assert narrow / times < 0.85  # what intervals over draws alone have


def test_without_shared_luck_intervals_hardly_widen():
    rng, times, wider = np.random.default_rng(0), 100, []
    for _ in range(times):
        rows, gains = simulated(rng, 48, 200, luck=0.0, effect=0.1)
        error = of_median(shifts(rows, ["setting", "variant"], 1), [(("a", "mine"), ("a", "base"), gains)])
        interval = quantile_interval(gains, 0.5, 0.0)
        wide = widened(interval, error)
        wider.append((wide.high - wide.low) / (interval.high - interval.low))
    assert np.median(wider) < 1.1


def test_the_error_of_the_best_tenth_is_that_of_other_report_sets():
    rng, found, errors = np.random.default_rng(1), [], []
    for _ in range(200):
        rows, gains = simulated(rng, 64, 60, luck=0.5, effect=0.0)
        cells = {v: Sample(rows.filter(variant=v)["value"].to_numpy(), 64.0) for v in ("base", "mine")}
        moved = shifts(rows, ["setting", "variant"], 1)
        errors.append(of_best(moved, [(("a", "mine"), ("a", "base"), cells["mine"], cells["base"])]))
        found.append(gains.values_N.mean())
    # the luck of the sequences is most of it: 0.5 / sqrt(60)
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(0.5 / np.sqrt(60), rel=0.25)


def test_nothing_changes_where_the_report_set_is_not_known_or_no_sample():
    interval = Interval(0.1, 0.02, 0.2, 0.01)
    assert widened(interval, 0.0) is interval
    rows = pl.DataFrame({"setting": ["a"], "variant": ["x"], "draw": [0], "value": [0.5], "without": [None]})
    assert shifts(rows, ["setting", "variant"], 1) == {}
    assert shifts(rows.drop("without"), ["setting", "variant"], 1) == {}


def test_values_without_a_block_are_those_of_the_smaller_set():
    rng, models, places = np.random.default_rng(0), 3, 200
    values, length = rng.normal(size=(models, places)), rng.integers(1, 5, places)
    block, defined = rng.integers(0, 4, places), rng.random(places) < 0.7
    found = means_without(values, length, block, 4, defined)
    for k in range(4):
        rest = block != k
        assert np.allclose(found[..., k], mean_by_length(values[:, rest], length[rest], defined[rest])[1])
    nothing = means_without(values[:, :1], length[:1], np.zeros(1, int), 2)
    assert np.isnan(nothing[..., 0]).all()
    assert np.allclose(nothing[..., 1], values[:, :1])
    assert jackknife_error(np.array([2.0, 3.0, 4.0])) == pytest.approx(np.std([1, 3, 5], ddof=1) / np.sqrt(3))


class Slow(SetComplement):
    def by_length(self, measured, validation):
        return Task.by_length(self, measured, validation)


def test_blocks_of_every_kind_of_set():
    rng = np.random.default_rng(0)
    fast, slow = (task.with_options(sequences=25) for task in (SetComplement(12), Slow(12)))
    report = fast.validation(0, "report")
    measured = {name: rng.random((2, len(report.length_P))) for name in ("tvd", "kl", "illegal")}
    measured["error"] = np.where(report.length_P == 11, rng.random((2, len(report.length_P))) < 0.5, np.nan)
    a, b = (by_length_without(task, measured, report) for task in (fast, slow))
    assert set(a) == set(b) == {"tvd", "kl", "illegal", "error", "exact"}
    for name, values in a.items():
        assert values.shape == (2, 11, BLOCKS)
        assert np.allclose(values, b[name], equal_nan=True), name
    dyck = Dyck(2, 3, sequences=12)
    report = dyck.validation(0, "report")
    measured = {name: rng.random((2, len(report.length_P))) for name in ("tvd", "marked")}
    found = by_length_without(dyck, measured, report)
    assert set(found) == {"tvd"}
    rest = {"tvd": measured["tvd"].reshape(2, 12, -1)[:, np.arange(12) % BLOCKS != 1].reshape(2, -1)}
    assert np.allclose(found["tvd"][..., 1], dyck.by_length(rest, report.without(1, BLOCKS))["tvd"][1])
    items = MaxRetrieval(longest=32, items=640)
    report = items.validation(0, "report")
    found = by_length_without(items, {"accuracy": rng.random((1, len(report.length_P)))}, report)["accuracy"]
    assert found.shape == (1, 2, BLOCKS)
    assert (
        by_length_without(SetComplement(5), {"tvd": np.zeros((1, 75))}, SetComplement(5).validation(0, "report")) == {}
    )


def test_what_blocks_share_is_computed_once_per_report_set():
    """A shard asks for all kinds of weights and selections; where a metric is defined depends on the set alone."""
    dyck = Dyck(2, 3, sequences=12)
    report = dyck.validation(0, "report")
    measured = {name: np.zeros((1, len(report.length_P))) for name in ("tvd", "error", "closing")}
    first = by_length_without(dyck, measured, report)
    computed = task._defined.cache_info().misses
    again = by_length_without(dyck, measured, report)
    assert task._defined.cache_info().misses == computed
    assert all(np.array_equal(first[name], again[name], equal_nan=True) for name in first)


# ---- the best constant -------------------------------------------------------------------------------------------


def test_the_best_constant_for_tvd_is_that_of_a_linear_program():
    rng = np.random.default_rng(0)
    for _ in range(25):
        places, v = rng.integers(1, 8), rng.integers(2, 5)
        p = rng.dirichlet(np.full(v, rng.choice([0.2, 1.0])), places)
        p = np.eye(v)[p.argmax(1)] if rng.random() < 0.3 else p
        share = rng.dirichlet(np.ones(places))
        q = best_for_tvd(p, share)
        assert q.min() >= 0
        assert q.sum() == pytest.approx(1)
        # minimize sum of share * e / 2 with e >= |q - p|
        costs = np.concatenate([np.zeros(v), np.repeat(share, v) / 2])
        signs = [np.hstack([sign * np.tile(np.eye(v), (places, 1)), -np.eye(places * v)]) for sign in (1, -1)]
        bounds = np.concatenate([p.ravel(), -p.ravel()])
        sums = np.concatenate([np.ones(v), np.zeros(places * v)])[None]
        least = linprog(costs, np.vstack(signs), bounds, sums, [1.0]).fun
        assert 0.5 * (share[:, None] * np.abs(q - p)).sum() == pytest.approx(least, abs=1e-9)


def test_there_is_a_constant_at_every_length():
    """Also for questions, whose sequences are sorted by their number of items. With items of two kinds a constant is
    wrong for half of them."""
    task = Copy(2, repeated=True, train_items=4)
    found = trivial_values(task, 0, "tvd")["tvd"]
    assert sorted(found) == task.validated
    assert all(0.4 < value <= 0.5 for value in found.values())


def test_no_constant_is_better_on_set_complement():
    """By symmetry a uniform guess is as good as any: i/v in TVD and illegal tokens, log(v / (v - i)) in KL; the last
    token is one of v. Against ten thousand random constants."""
    v, i = 6, np.arange(1, 6)
    found = trivial_values(SetComplement(v), 0)
    for name in ("tvd", "illegal"):
        assert np.allclose(list(found[name].values()), i / v)
    assert np.allclose(list(found["kl"].values()), np.log(v / (v - i)))
    assert found["error"] == {5: pytest.approx(1 - 1 / v)}
    assert found["exact"] == {5: pytest.approx(1 / v)}
    report = SetComplement(v).validation(0, "report")
    p = SetComplement(v).examples(report).truth["p_star"][report.length_P == 3]
    some = np.random.default_rng(0).dirichlet(np.full(v, 0.5), 10_000)
    tvd = 0.5 * np.abs(some[:, None] - p).sum(-1).mean(-1)
    assert tvd.min() >= found["tvd"][3] - 1e-9


def test_each_constant_is_best_for_its_metric():
    task = Dyck(2, 3, sequences=9)
    report = task.validation(0, "report")
    here = report.length_P == 6
    p, weight = task.examples(report).truth["p_star"][here], report.weight_NxL[report.scored_NxL][here]
    mean, _, answer, legal = constants(p, weight)
    share = weight / weight.sum()
    some = np.random.default_rng(0).dirichlet(np.full(6, 0.5), 5_000)

    def kl(q):
        return (share * np.where(p > 0, p * np.log(np.maximum(p, 1e-300) / np.maximum(q, 1e-30)), 0).sum(-1)).sum()

    assert min(map(kl, some)) >= kl(mean) - 1e-12
    assert (share @ (p == 0) @ legal) == pytest.approx((share @ (p == 0)).min())
    alone = p.max(1) == 1
    if alone.any():
        assert (share[alone] @ p[alone]).argmax() == answer.argmax()


# ---- verdicts ----------------------------------------------------------------------------------------------------


def test_models_that_learned_nothing_have_no_verdict(tiny, tmp_path):
    """After a dozen steps hardly a model of Set Complement is better than a constant."""
    made = run(tiny, tmp_path / "r", workers=1)
    found = compare(made)
    effect = found.headlines()[0]
    assert effect.constant is not None
    beat = effect.constant.beat, effect.constant.baseline_beat
    assert max(beat) < 0.1 * 32
    assert effect.median.verdict == effect.best.verdict == "not trained enough to tell"
    assert "median not trained enough to tell, " in found.sentences()[0]
    assert f"{beat[0]} of 32 models beat a constant (pre: {beat[1]} of 32)" in found.sentences()[0]
    assert "checkpoints chosen on all lengths" in found.sentences()[0]
    row = (
        found.table().filter(variant=effect.variant, setting=effect.setting, lengths=effect.lengths).row(0, named=True)
    )
    assert row["beat_constant"] == beat[0]
    values = rs.scores(made).filter(weights="train", variant=effect.variant)
    better = values.filter(pl.col("setting") == "sct-v4-s1", pl.col("score_new") < 0.98 * (2 / 4 + 3 / 4) / 2)
    better_2 = values.filter(pl.col("setting") == "sct-v4-s2", pl.col("score_new") < 0.98 * 3 / 4)
    assert better.height + better_2.height == beat[0]
    assert row["places"] == effect.places.total


def test_trained_enough_means_the_best_tenth_of_either():
    def enough(a, b):
        return Constant(0.5, 0.0, a, 20, b, 20).trained

    assert [enough(1, 1), enough(2, 0), enough(0, 2)] == [False, True, True]
    assert Constant(1.0, 1.0, 0, 20, 0, 20).trained  # nothing to learn
    assert Constant(0.5, 0.0, 1, 2, 1, 2).share(0.1) == pytest.approx(0.2)


def test_the_correction_explains_itself():
    one, nothing = Interval(0.107, 0.040, 0.158, 0.02), Interval(0.0, -0.1, 0.1, 0.9)
    said = judged([one, *[nothing] * 11], [16] * 12, 0.02)[0].said(0.02)
    assert said.startswith("undecided after correction for 12 comparisons (about ")
    assert "after correction" not in judged([nothing], [16], 0.02)[0].said(0.02)


def test_metrics_and_selections_can_be_compared(tiny, tmp_path):
    made = run(tiny, tmp_path / "r", workers=1)
    kl, tvd = compare(made, metric="kl", selection="last"), compare(made)
    assert kl.metric.label.startswith("KL")
    assert "last checkpoints" in kl.sentences()[0]
    last = made.table("lengths").filter(metric="kl", selection="last", weights="train", length=3)
    values = (
        last.join(made.table("models"), on="model")
        .filter(setting="sct-v4-s2")
        .pivot("variant", index="draw", values="value")
    )
    at = next(at for at in kl.at_lengths if (at.setting, at.length) == ("sct-v4-s2", 3))
    assert at.median.estimate == pytest.approx((values["pre"] - values["peri"]).median(), rel=1e-6)
    assert tvd.metric.label == "TVD"
    with pytest.raises(UserError, match="unknown metric 'kll': did you mean 'kl'"):
        compare(made, metric="kll")
    with pytest.raises(UserError, match=r"has no values of 'kl': it was not measured there \(measured: tvd\)"):
        compare(rs.reference("fig1-laptop"), metric="kl")


def test_seeds_are_pooled(tiny, tmp_path):
    a, b = (run(replace(tiny, seed=seed), tmp_path / str(seed), workers=1) for seed in (0, 1))
    alone, both = compare(a), compare(a, pool=[b])
    assert both.headlines()[0].pairs == 2 * alone.headlines()[0].pairs
    gains = []
    for store in (a, b):
        rows = rs.scores(store).filter(setting="sct-v4-s1", weights="train").sort("draw")
        gains.append((rows.filter(variant="pre")["score_new"] - rows.filter(variant="peri")["score_new"]).to_numpy())
    effect = next(e for e in both.effects if (e.setting, e.lengths) == ("sct-v4-s1", "new"))
    assert effect.median.interval.estimate == pytest.approx(np.median(np.concatenate(gains)), rel=1e-6)
    with pytest.raises(UserError, match=r"has the same seed as another run \(0\)"):
        compare(a, pool=[a])
    other = run(replace(tiny, seed=2, steps=13), tmp_path / "other", workers=1)
    with pytest.raises(UserError, match="steps: "):
        compare(a, pool=[other])
