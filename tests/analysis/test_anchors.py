"""Published numbers beside our draws: arithmetic, the study through the command line, its page and its figure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pages
import polars as pl
import pytest
from make_reference import write_reference

import resharpen as rs
from resharpen.analysis.anchors import Compared, compared, finding, values
from resharpen.analysis.published import GAIN, RUNS, SOURCES, Anchor
from resharpen.analysis.statistics import Sample
from resharpen.cli import main
from resharpen.experiments.specs.shelf import ANCHORS, AS_HUANG, IN_FEW_STEPS, PUBLISHED_POINT, SCALES, STUDIES, take
from resharpen.tasks import QuestionTask
from resharpen.views.anchors import cells, draw_anchors, section

TENTHS = np.arange(1, 11) / 10
pytestmark = pytest.mark.filterwarnings("ignore:variant .* runs on the torch engine")


def made_up(published, draws=TENTHS, lower_is_better=False):
    anchor = Anchor("a", "pre", "exact", {(1, 50): published})
    sample = Sample(draws, float(len(draws)))
    return Compared(SOURCES[0], anchor, "drawn", (1, 50), sample, lower_is_better, "tokens")


def test_a_value_is_the_mean_over_a_range_of_lengths():
    rows = pl.DataFrame(
        {
            "variant": ["pre"] * 6 + ["peri"] * 4,
            "draw": [1, 1, 1, 0, 0, 0, 0, 0, 1, 1],
            "length": [10, 50, 51, 10, 50, 51, 10, 50, 10, 50],
            "value": [0.2, 0.4, 1.0, 0.5, 0.7, 0.0, 0.9, 0.9, None, None],
        }
    )
    whole, less = Anchor("", "pre", "exact", {}), Anchor("", "peri", "exact", {}, less="pre")
    assert values(rows, whole, (1, 50), 0.0) == pytest.approx([0.6, 0.3])
    assert values(rows, whole, (51, 100), 0.0) == pytest.approx([0.0, 1.0])
    assert values(rows, less, (1, 50), 0.0) == pytest.approx([0.3, -0.3])  # a diverged model has the worst value
    assert len(values(rows, whole, (101, 150), 0.0)) == 0


def test_quantiles_and_shares_by_hand():
    """Ten draws: the median is between the second and the ninth value, since P(B <= 1) = 11/1024 < 0.025 for B ~
    Binomial(10, 1/2) and P(B <= 2) is not; the 90% quantile is above the seventh, since P(B <= 6) = 0.013 for 9/10."""
    found = made_up((0.8, 0.8))
    assert (found.median.estimate, found.median.low, found.median.high) == pytest.approx((0.55, 0.2, 0.9))
    assert found.best_tenth.estimate == pytest.approx(0.99)  # the 9.9th of ten
    assert found.best == 1.0
    # three of ten, with the interval of Clopper and Pearson's tables
    assert (found.as_good.estimate, found.as_good.low, found.as_good.high) == pytest.approx(
        (0.3, 0.067, 0.652), abs=1e-3
    )
    assert cells(found)[5:] == (
        "10",
        "55.0 (20.0 to 90.0)",
        "99.0 (70.0 or more)",
        "100.0",
        "30.0 (6.7 to 65.2)",
        "undecided",
    )


@pytest.mark.parametrize(
    ("published", "lower", "verdict", "as_good"),
    [
        ((0.9, 0.9), False, "undecided", 0.2),
        ((0.95, 0.95), False, "worse", 0.1),
        ((0.95, 0.95), True, "better", 0.9),
        ((0.1, 0.1), False, "better", 1.0),
        ((0.0, 0.0), True, "worse", 0.0),
        ((0.0, 0.3), True, "undecided", 0.3),
        ((0.3, 0.95), False, "undecided", 0.8),
    ],
)
def test_the_verdict_goes_by_the_interval_of_the_median(published, lower, verdict, as_good):
    found = made_up(published, lower_is_better=lower)
    assert found.verdict == verdict
    assert found.as_good.estimate == pytest.approx(as_good)


def test_a_gain_is_not_consistent_if_it_may_be_nothing():
    """Of ten draws the interval is from the second to the ninth: narrow enough, with and without 0."""
    for low, verdict in ((0.0, "undecided"), (0.005, "consistent")):
        found = made_up((0.02, 0.02), low + 0.1 / 7 * (np.arange(10) - 1))
        assert found.verdict == "consistent"
        assert replace(found, anchor=replace(found.anchor, less="peri")).verdict == verdict


def test_nothing_is_as_good_as_a_failure():
    """Every value is at least 0, but an error of 0 is perfect."""
    assert made_up((0.0, 0.2)).as_good is None
    assert made_up((0.0, 0.0), lower_is_better=True).as_good.estimate == 0.0


def test_a_wide_interval_says_too_little():
    """Of ten draws the interval is from the second to the ninth."""
    for step, verdict in ((0.2 / 7, "consistent"), (0.21 / 7, "undecided")):
        assert made_up((0.5, 0.5), 0.5 + step * (np.arange(10) - 4.5)).verdict == verdict


def test_the_finding_counts():
    found = [made_up((x, x)) for x in (0.8, 0.95, 1.1, 0.1)] + [made_up(None)]
    assert finding(found) == (
        "Of 4 comparisons with published numbers, the median of our draws is consistent with 0, better in 1, worse in "
        "2 and undecided in 1; in 3 at least one draw is as good as published."
    )
    assert found[-1].verdict is None
    assert finding(found[-1:]) == "No numbers are published to compare these with."
    few = made_up((0.8, 0.8), TENTHS[:5])  # the median has an interval from six draws on
    assert few.verdict == "undecided"
    assert made_up((0.8, 0.8), TENTHS[:6]).verdict == "worse"
    assert found[-1].as_good is None


def test_the_gain_is_the_difference_of_two_lines():
    assert GAIN == {16: 0.0, 64: 0.002, 256: 0.008, 1_024: 0.039, 4_096: 0.023, 16_384: 0.016}


def test_a_section_without_published_numbers_has_one_table():
    lines = section(SOURCES[0], [made_up(None)], ["`here`"]).splitlines()
    assert not any(line.startswith("Without") for line in lines)
    assert [line for line in lines if line.startswith("|")] == [
        "|  | lengths | hyperparameters | draws | median | best tenth | best draw |",
        "|---|---|---|---|---|---|---|",
        "| a | 1-50 | drawn | 10 | 55.0 (20.0 to 90.0) | 99.0 (70.0 or more) | 100.0 |",
    ]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.title)
def test_every_line_can_be_compared_with_its_runs(source):
    experiments = [take(name, source.scale) for name in source.runs]
    for anchor in source.anchors:
        needed = {anchor.variant, anchor.less or anchor.variant}
        runs = [experiment for experiment in experiments if needed <= set(experiment.variants)]
        assert runs
        for task in (experiment.settings[0].task for experiment in runs):
            assert anchor.metric in task.metrics
            assert anchor.test in ("", *task.tests)


def test_the_shelf_has_it():
    assert STUDIES["anchors"] == tuple(ANCHORS)
    assert set(ANCHORS) == set(RUNS) - {"fig3", "random_query"}
    for name in ANCHORS:
        for scale in SCALES:
            given = dict(take(name, scale).hyperparameters)
            assert given == (
                AS_HUANG if name.endswith(PUBLISHED_POINT) else {} if name == "anchors-max" else IN_FEW_STEPS
            )
        laptop = take(name, "laptop")
        assert laptop.models == (8 if name.endswith(PUBLISHED_POINT) else 32)
    sort = take("anchors-sort", "laptop")
    one, two = (sort.settings[0].model_of(sort.variants[name]) for name in ("one-head", "two-heads"))
    assert (one.heads, two.heads) == (1, 2)
    assert replace(one, heads=2) == two


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The whole study at `smoke`, with fewer steps and smaller selection sets."""
    out = tmp_path_factory.mktemp("anchors")
    words = ["--scale", "smoke", "--models", "2", "--steps", "2", "--workers", "1", "--out", str(out)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(QuestionTask, "selection_sequences", 2)
        main(["run", "anchors", *words])
    return out


def test_every_entry_runs(study):
    for name in ANCHORS:
        run = rs.load(study / f"{name}-smoke")
        found = compared(run)
        anchors = [anchor for anchor in RUNS[name].anchors if anchor.variant in run.experiment.variants]
        of_run = [(anchor, lengths) for anchor in anchors for lengths in anchor.numbers]
        assert [(each.anchor, each.lengths) for each in found] == of_run
        assert all(len(each.sample.values_N) == 2 for each in found)
        assert all(np.isfinite(each.sample.values_N).all() for each in found)
    assert (study / "anchors-smoke.png").exists()


def test_values_are_those_of_the_tables(study):
    run = rs.load(study / "anchors-flip-flop-smoke")
    found = next(
        x for x in compared(run) if (x.anchor.what, x.anchor.test, x.lengths) == ("peri minus pre", "dense", (65, 192))
    )
    table = run.table("lengths").filter(
        pl.col("length") > 64, test="dense", metric="error", selection="best-trained", weights="train"
    )
    means = {
        v: [table.filter(model=f"flip-flop-i0.8-s64/{v}/{i}")["value"].mean() for i in range(2)]
        for v in ("pre", "peri")
    }
    np.testing.assert_allclose(found.sample.values_N, np.subtract(means["peri"], means["pre"]))
    assert found.lower_is_better


def test_the_constant_is_what_a_model_that_ignores_its_input_scores(study):
    """Of the two classes of binary majority the more frequent one of each length; a difference has none."""
    task = take("anchors-majority", "smoke").settings[0].task
    p_star = task.examples(task.validation(0, "report")).truth["p_star"]
    length_P = task.validation(0, "report").length_P
    inside = {n: p_star[length_P == n] for n in np.unique(length_P) if n <= 50}
    certain = {n: p[p.max(1) == 1] for n, p in inside.items()}
    shares = [p.mean(0).max() for p in certain.values() if len(p)]
    of_run = compared(rs.load(study / "anchors-majority-smoke"))
    assert of_run[0].lengths == (1, 50)
    assert of_run[0].constant == pytest.approx(np.mean(shares))
    assert {each.constant for each in compared(rs.load(study / "anchors-max-smoke")) if each.anchor.less} == {None}


def test_claims_prints_them(study, capsys):
    main(["claims", str(study / "anchors-majority-smoke")])
    printed = capsys.readouterr().out
    assert "Binary majority (Huang et al., 2025)" in printed
    assert "undecided in 6; in " in printed


def test_a_run_of_another_task_by_that_name_has_none(tiny, tmp_path):
    assert compared(rs.run(replace(tiny, name="fig3-laptop"), tmp_path / "r", workers=1)) == []


def test_a_reference_fills_the_page_and_the_figure(study, tmp_path, monkeypatch):
    run = rs.load(study / "anchors-max-smoke")
    reference = write_reference(run, rs.scores(run), tmp_path / "anchors-max-laptop")
    found, own = compared(reference), compared(run)
    for kept, each in zip(found, own, strict=True):
        np.testing.assert_allclose(kept.sample.values_N, each.sample.values_N, atol=1e-6)
    monkeypatch.setattr(pages, "published", lambda: {"anchors-max-laptop": (reference, found)})
    text = pages.anchors()
    assert f"| {' | '.join(cells(found[0]))} |" in text
    assert text.count("no results yet") == sum(
        value is not None for source in SOURCES[1:] for anchor in source.anchors for value in anchor.numbers.values()
    )
    assert "`anchors-sort-laptop` (10,000 steps, minibatches of 16, peak_learning_rate 0.001 to 0.01, " in text.replace(
        "\n", " "
    )
    panels = draw_anchors(found).axes
    assert "no results yet" not in panels[0].get_title()
    assert "no results yet" in panels[2].get_title()
    assert panels[0].get_xlabel() == "length (items); 2 draws, none diverged"
    of_both = [replace(each, diverged=frozenset({f"{each.anchor.variant}/1", "none/0"})) for each in found]
    assert draw_anchors(of_both).axes[0].get_xlabel() == "length (items); 2 draws, 3 diverged"
