import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text as MatplotlibText
from rich.console import Console

import resharpen as rs
from resharpen.analysis.claims import claims
from resharpen.analysis.scores import scores
from resharpen.cli import main
from resharpen.errors import UserError
from resharpen.experiments.running.runner import Observer, run
from resharpen.experiments.running.training import Asked, Progress
from resharpen.experiments.specs.spec import Experiment, Setting, labels
from resharpen.models import Minimal, Retriever
from resharpen.optim.hyperparameters import narrowed
from resharpen.tasks import MaxRetrieval, Metric, SetComplement
from resharpen.views.compare_figure import styles
from resharpen.views.palette import BEMA, KNOWN
from resharpen.views.progress import LiveProgress, Meter, PlainProgress
from resharpen.views.report.gather import Gathered
from resharpen.views.tables import print_claims, print_scores, print_status
from resharpen.views.violins import Look, draw_halves, fit_values, half_violin, split_violins

TVD = Metric("TVD", lower_is_better=True, worst=1.0)


def draw(store, **how):
    return rs.draw(store, **how)["figure"]


def texts(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(MatplotlibText))


def test_figure_shows_models_and_counts(tiny, tmp_path):
    store = run(tiny, tmp_path / "r", workers=1)
    figure = draw(store)
    assert len(figure.axes) == 2
    words = texts(figure)
    for expected in ("pre", "peri", "training length s (tokens)", "mean TVD", "16 models per violin, 0 of 64 diverged"):
        assert expected in words
    dots = [line for line in figure.axes[0].lines if line.get_marker() == "."]
    assert sum(len(line.get_xdata()) for line in dots) == 2 * 2 * 16  # s, weights, models
    pre_bema_s2 = scores(store).filter(variant="pre", train_length=2, weights="bema")["score"]
    assert any(np.array_equal(line.get_ydata()[16:], pre_bema_s2) for line in dots)  # behind those of s = 1


def test_figure_counts_the_diverged(tiny, tmp_path):
    rows = {**tiny.hyperparameters, "peak_learning_rate": narrowed("peak_learning_rate", 1e30)}
    rows["warmup_steps"] = narrowed("warmup_steps", 0)
    store = run(replace(tiny, hyperparameters=rows, models=2), tmp_path / "r", workers=1)
    assert "8 of 8 diverged, 8 not shown" in texts(draw(store))


def test_a_value_that_one_model_lacks_is_the_worst_one_in_figure_and_report(tmp_path):
    setting = Setting(MaxRetrieval(longest=64, items=128, selection_items=64), 16, Retriever(16))
    spec = Experiment("few", (setting,), ["none"], models=3, steps=2, batch=4, checkpoints=1)
    store = run(spec, tmp_path / "r", workers=1)
    longest = store.table("lengths")["length"].max()
    lost = (pl.col("length") == longest) & pl.col("model").str.ends_with("/1")
    table = store.table("lengths").with_columns(value=pl.when(lost).then(None).otherwise("value"))
    store._tables["lengths"] = table
    axes = draw(store).axes[0]
    at = len(table["length"].unique()) - 1
    dots = [line.get_ydata()[np.abs(line.get_xdata() - at) < 0.5] for line in axes.lines if line.get_marker() == "."]
    assert [len(values) for values in dots] == [3, 3]
    assert all(values[1] == 0 for values in dots)
    assert (Gathered(store).arrays()["value"][0, :, 1, at] == 0).all()


def test_figure_of_an_unfinished_run_says_so(tiny, tmp_path):
    ended = set()

    def watch(progress):
        if progress.step == progress.steps:
            ended.add(progress.shard)

    store = run(tiny, tmp_path / "r", workers=1, observer=Observer(update=watch, asked=lambda: Asked(len(ended) == 3)))
    assert 0 < len(store.done()) < 4
    assert "of 64 models so far" in texts(draw(store))


def test_what_has_no_models_yet_has_no_row(tiny, tmp_path):
    """Of two tasks the second is not begun, of two variants one has its first model."""
    two = replace(tiny, settings=(tiny.settings[0], Setting(SetComplement(5), 2, Minimal(5, 4, 1, 4))), models=2)
    first, *others = (shard.name for shard in two.shards())
    figure = draw(run(two, tmp_path / "r", workers=1, without=set(others)))
    assert "v = 5" not in texts(figure)
    assert len(figure.axes) == 1
    begun = draw(run(two, tmp_path / "s", workers=1, without={first, others[-1]}))
    assert len(begun.axes) == 4
    assert texts(begun).count("no models yet") == 2


@pytest.mark.parametrize(
    ("selection", "words"),
    [
        ("best", "at its best checkpoint\n("),
        ("best-trained", "at its best checkpoint on trained lengths"),
        ("last", "at its last checkpoint"),
    ],
)
def test_the_caption_says_which_checkpoint(tiny, tmp_path, selection, words):
    store = run(replace(tiny, models=2), tmp_path / "r", workers=1)
    title = draw(store, selection=selection).get_suptitle()
    assert words in title
    assert ("best" in title) == (selection != "last")
    with pytest.raises(UserError, match="unknown selection 'latest': did you mean 'last'"):
        draw(store, selection="latest")


def test_the_caption_says_what_models_are_read_with(tiny, tmp_path):
    store = run(replace(tiny, models=2), tmp_path / "r", workers=1)
    assert "scored with" not in draw(store).get_suptitle()
    assert "scored with log-n" in draw(store, attention="log-n").get_suptitle()


def test_a_panel_for_every_variant(tiny, tmp_path):
    store = run(replace(tiny, models=2, variants=["pre", "pre+log-n"]), tmp_path / "r", workers=1)
    assert [axes.get_title() for axes in draw(store).axes] == ["pre", "pre+log-n"]


def test_violins_of_one_value_and_of_none():
    axes = Figure().subplots()
    rows = pl.DataFrame(
        {"weights": ["train", "bema", "train"], "length": [1, 1, 2], "value": [0.25, np.nan, 0.5]}, strict=False
    )
    split_violins(axes, rows, {1: 1, 2: 2, 3: 3}, "length", "value", TVD, "#0072B2")
    dots, *ticks = axes.lines  # one artist for the dots of all violins, then two ticks each; nothing of BEMA
    assert dots.get_ydata().tolist() == [0.25, 0.5]
    assert [line.get_ydata()[0] for line in ticks] == [0.25, 0.25, 0.5, 0.5]


def test_models_without_a_value_rank_worst_and_are_no_dots():
    half = half_violin(np.array([0.1, np.nan, 0.3, np.nan, np.nan]), TVD)
    assert half is not None
    assert half.values.tolist() == [0.1, 0.3]
    assert (half.stats["min"], half.stats["max"]) == (0.1, 0.3)
    assert half.median == 1.0
    assert half.best == 0.1  # the 0.6th of five, that is the first
    accuracy = half_violin(np.array([0.5, np.nan, 0.9]), Metric("accuracy"))
    assert accuracy is not None
    assert (accuracy.median, accuracy.best) == (0.5, 0.9)
    entropy = half_violin(np.array([0.5, np.inf, np.nan]), Metric("entropy", lower_is_better=True, worst=np.inf))
    assert entropy is not None
    assert entropy.median == 0.5  # infinity cannot be shown


def test_tables(tiny, tmp_path):
    store = run(tiny, tmp_path / "r", workers=1)
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        print_claims(claims(store), console)
        print_scores(scores(store), TVD, labels(store.experiment.settings), console)
        print_status(store, console)
    text = console.export_text()
    for expected in ("undecided at this scale", "s = 2", "4 of 4 finished", "resharpen figure"):
        assert expected in text


def progress(shard, step, setting="a", variant="peri", best=math.nan, lower_is_better=True):
    return Progress(shard, setting, variant, 16, step, 100, best, lower_is_better, diverged=0, checkpoint=True)


def plan_of(*settings):
    task = SimpleNamespace(metric="tvd", metrics={"tvd": TVD}, lower_is_better=True)
    shard = [SimpleNamespace(count=16, setting=SimpleNamespace(name=name, task=task)) for name in settings]
    variants = {"pre": SimpleNamespace(engine="native"), "peri": SimpleNamespace(engine="torch")}
    experiment = SimpleNamespace(steps=100, variants=variants, references=list)
    store = SimpleNamespace(experiment=experiment, directory="r")
    return SimpleNamespace(run=store, shards=shard, todo=shard, damaged=[])


def test_meter_weighs_settings_by_their_own_pace():
    """Setting a takes 10 s, setting b 90 s, one worker: after a, ninety seconds are left."""
    now = [0.0]
    meter = Meter(clock=lambda: now[0])
    meter.start(plan_of("a", "b"))
    meter.update(progress("a", 0))
    now[0] = 10.0
    meter.update(progress("a", 100, best=0.2))
    assert meter.fraction == 0.5
    assert meter.steps_per_second == 160
    meter.update(progress("b", 0, setting="b"))
    now[0] = 20.0
    meter.update(progress("b", 10, setting="b", best=0.1))
    assert meter.seconds_left() == 90 * (20.0 / 20.0)
    assert meter.best == {"peri": 0.1}
    assert meter.pace == "88 model-steps/s, 1.5 min left"


def test_time_left_is_not_said_before_a_shard_was_scored_and_written():
    """300 steps take 1 s, and the first of them 0.9 s; results of a shard take 9 s more; 2,000 shards. The first step
    alone would promise days, the steps alone half an hour, and it takes five hours and a half."""
    now = [0.0]
    meter = Meter(clock=lambda: now[0])
    meter.start(plan_of(*["a"] * 2000))
    meter.update(progress("a-0", 0))
    for step, at in ((1, 0.9), (100, 1.0)):
        now[0] = at
        meter.update(progress("a-0", step, best=0.3))
        assert meter.pace.endswith("model-steps/s")
    now[0] = 10.0  # written: the next one begins
    meter.update(progress("a-1", 0))
    assert meter.seconds_left() == pytest.approx(1999 * 10)
    assert meter.pace.endswith("5.6 h left")


def test_a_long_shard_has_an_estimate_before_its_end():
    now = [0.0]
    meter = Meter(clock=lambda: now[0])
    meter.start(plan_of("a"))
    meter.update(progress("a", 0))
    now[0] = 119.0
    meter.update(progress("a", 10))
    assert math.isnan(meter.seconds_left())
    now[0] = 120.0
    assert meter.seconds_left() == pytest.approx(120.0 * 9)


@pytest.mark.parametrize(("lower", "best"), [(True, {"peri": 0.2, "pre": 0.7}), (False, {"peri": 0.9, "pre": 0.7})])
def test_meter_takes_the_best_for_what_is_better(lower, best):
    """Over shards, of which the last heard of need not be the best; nan before the first checkpoint is no score."""
    meter = Meter(clock=lambda: 0.0)
    meter.start(plan_of("a", "b", "c"))
    for shard, variant, score in (("a", "peri", 0.4), ("b", "peri", 0.9), ("c", "pre", 0.7), ("a", "peri", 0.2)):
        meter.update(progress(shard, 50, variant=variant, best=score, lower_is_better=lower))
        meter.update(progress(shard, 60, variant=variant, lower_is_better=lower))
    assert meter.best == best


def test_progress_of_a_run_says_which_way_is_up(tmp_path):
    """Accuracy: the best that is shown is the highest of all checkpoints, models and weights."""
    setting = Setting(MaxRetrieval(longest=16, items=128, selection_items=128), 16, Retriever(16))
    spec = Experiment("x", (setting,), ["none", "peri"], models=3, steps=9, batch=8, checkpoints=3, engine="torch")
    meter, seen = Meter(clock=lambda: 0.0), []
    store = run(
        spec,
        tmp_path / "r",
        workers=1,
        observer=Observer(meter.start, lambda progress: [meter.update(progress), seen.append(progress)]),
    )
    assert not any(progress.lower_is_better for progress in seen)
    curves = store.table("curves").join(store.table("models"), on="model")
    highest = {name: curves.filter(variant=name)["score"].max() for name in ("none", "peri")}
    assert meter.best == highest
    assert meter.best != {name: curves.filter(variant=name)["score"].min() for name in highest}


def test_meter_does_not_take_what_an_earlier_call_did_for_its_own_pace():
    now = [0.0]
    meter = Meter(clock=lambda: now[0])
    meter.start(plan_of("a"))
    meter.update(progress("a", 60))
    now[0] = 400.0
    meter.update(progress("a", 80))
    assert meter.fraction == pytest.approx(0.8)
    assert meter.seconds_left() == pytest.approx(400.0)


def test_after_a_resume_all_models_and_their_best_scores_count(tiny, tmp_path):
    """A run of 16 models is extended to 32: it begins at one half, with the best of the first 16."""
    first = run(tiny, tmp_path / "r", workers=1)
    curves = first.table("curves").join(first.table("models"), on="model")
    best = {name: curves.filter(variant=name)["score"].min() for name in tiny.variants}
    meter, seen = Meter(clock=lambda: 0.0), []

    def start(plan):
        meter.start(plan)
        seen.append((meter.models, meter.fraction, dict(meter.best), meter.metric))

    store = run(replace(tiny, models=32), tmp_path / "r", workers=1, observer=Observer(start, meter.update))
    assert seen == [(128, 0.5, best, "TVD")]
    assert meter.fraction == 1.0
    assert store.table("models").height == 128  # what the meter read has not been kept for later


def test_a_log_has_a_line_per_minute_or_tenth():
    now = [0.0]
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        plain = PlainProgress(console, clock=lambda: now[0])
        plain.plan(plan_of("a"))
        assert "(native and torch engine)" in console.export_text(clear=False)
        for step in range(101):  # ten seconds for a run of a hundred checkpoints
            now[0] += 0.1
            plain.update(progress("a", step, best=0.3))
        fast = [line for line in console.export_text().splitlines() if "best TVD so far: peri 0.3000" in line]
        plain = PlainProgress(console, clock=lambda: now[0])
        plain.plan(plan_of("a"))
        for second in range(600):  # ten minutes for the first tenth
            now[0] += 1
            plain.update(progress("a", second // 60, best=0.3))
        slow = [line for line in console.export_text().splitlines() if "best TVD so far: peri 0.3000" in line]
    assert len(fast) == 11
    assert len(slow) == 10


def test_live_progress_draws():
    console = Console(width=100, force_terminal=True, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file, LiveProgress(console) as live:
        live.plan(plan_of("a"))
        live.update(progress("a", 0))
        live.update(progress("a", 50, best=0.123))
        live._live.refresh()
    assert "0.123" in console.export_text()


def test_an_outlier_does_not_take_half_of_a_panel():
    """One of 400 values is at 0.1: the axis begins at 0.9, and the panel says that one is below."""
    left, right = Figure().subplots(1, 2, sharey=True)
    values = np.linspace(0.9, 1.0, 200)
    for axes, shown in ((left, values), (right, np.append(values, 0.1))):
        draw_halves(axes, {1: half_violin(shown, Metric("accuracy"))}, "train", "#0072B2")
    fit_values([left, right])
    assert left.get_ylim()[0] == pytest.approx(0.9 - 0.03 * 0.1)
    assert [text.get_text() for text in left.texts] == []
    assert [text.get_text() for text in right.texts] == ["1 dot below"]


def test_a_figure_for_a_paper(tiny, tmp_path, capsys):
    """Text is text, no letter is smaller than 7 points, dots are one bitmap, and there is no title."""
    store = run(replace(tiny, models=2), tmp_path / "r", workers=1)
    figure = draw(store, look=Look(width=7, title=False))
    assert figure.get_figwidth() == 7
    assert figure.get_suptitle() == ""
    sizes = [text.get_fontsize() for text in figure.findobj(MatplotlibText) if text.get_text()]
    assert min(sizes) >= 7
    words = ["figure", str(tmp_path / "r"), "--width", "7", "--format", "pdf,svg", "--no-title", "--out", str(tmp_path)]
    main(words)
    assert "figure.pdf (and .svg)" in capsys.readouterr().out
    assert not (tmp_path / "figure.png").exists()
    svg = (tmp_path / "figure.svg").read_text()
    assert "training length s (tokens)</text>" in svg
    assert svg.count("<image") >= 1
    assert "random hyperparameters" not in svg
    assert (
        b"/FontFile2" in (tmp_path / "figure.pdf").read_bytes() or b"/Type42" in (tmp_path / "figure.pdf").read_bytes()
    )
    for wrong, said in (("--width=1", "must be from 3 to 40 inches"), ("--format=pgn", "did you mean 'png'")):
        with pytest.raises(SystemExit):
            main([*words[:2], wrong])
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "figure", "shape"), [("fig5-overnight", "figure", (2, 4)), ("remedies-dyck-laptop", "auc", (3, 4))]
)
def test_nothing_overlaps_in_a_figure_for_a_paper(name, figure, shape):
    """Names of panels and axes, and counts of outliers: of two tasks, and of a dozen variants."""
    drawn = rs.draw(rs.reference(name), look=Look(width=7, title=False))[figure]
    drawn.draw_without_rendering()
    grid = drawn.axes[0].get_gridspec()
    assert (grid.nrows, grid.ncols) == shape
    words = [
        text
        for axes in drawn.axes
        for text in (axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts)
        if text.get_text()
    ]
    assert min(text.get_fontsize() for text in words) >= 7
    boxes = [(text.get_text(), text.get_window_extent()) for text in words]
    overlapping = [(a, b) for i, (a, box) in enumerate(boxes) for b, other in boxes[:i] if box.overlaps(other)]
    assert overlapping == []


def test_a_variant_has_one_color_in_all_figures(tiny, tmp_path):
    """In violins and in the comparison; that of BEMA is no variant's."""
    store = run(replace(tiny, models=2), tmp_path / "r", workers=1)
    figure = draw(store)
    for axes, color in zip(figure.axes, (KNOWN["pre"], KNOWN["peri"]), strict=True):
        faces = {to_hex(body.get_facecolor()[0]) for body in axes.collections}
        assert faces == {color.lower(), BEMA.lower()}
    assert styles(["pre", "peri"])["peri"]["color"] == KNOWN["peri"]
    assert BEMA not in KNOWN.values()
