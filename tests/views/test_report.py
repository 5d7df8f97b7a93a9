"""The report: the arrays that it is made of, and the file."""

import re
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from report_page import HOSTILE
from runs import STOP_AT_ONCE

import resharpen as rs
from resharpen.analysis.scores import scores
from resharpen.cli import main
from resharpen.errors import UserError
from resharpen.experiments.running.runner import run
from resharpen.views.report.gather import Gathered
from resharpen.views.report.inside import _chosen
from resharpen.views.report.pack import finite
from resharpen.views.report.write import report, run_data, write_report

pytestmark = pytest.mark.xdist_group("report")


def test_violins_have_the_densities_of_the_figure(tiny, tmp_path):
    """Widths to 1/255 of the widest, ends and ticks exactly: the first panel's halves in the order they were drawn."""
    store = run(replace(tiny, models=5), tmp_path / "r", workers=1)
    gathered, axes = Gathered(store), rs.draw(store)["figure"].axes[0]
    arrays = gathered.arrays()
    halves = [(cell, w) for w in (0, 1) for cell in (0, 2)]  # settings 1 and 2 of the first variant
    ticks = [line.get_ydata()[0] for line in axes.lines if line.get_marker() != "." and len(line.get_xdata()) == 2]
    for i, ((cell, w), body) in enumerate(zip(halves, axes.collections, strict=True)):
        x, y = body.get_paths()[0].vertices.T
        low, high, median, best = arrays["ends"][0, cell, w, 0]
        assert (low, high) == pytest.approx((y.min(), y.max()))
        assert (median, best) == pytest.approx(ticks[2 * i : 2 * i + 2])
        away = np.abs(x - (cell // 2 + 1))  # the outline goes up along one side and down along the other
        shape = np.maximum(away[1:101], away[102:202][::-1])
        assert arrays["violin"][0, cell, w, 0] / 255 == pytest.approx(shape / shape.max(), abs=1 / 255)


def test_arrays_hold_what_the_tables_hold(store):
    gathered = Gathered(store)
    arrays = gathered.arrays()
    ids = gathered.models["model"].to_list()
    for row in store.table("lengths").filter(selection="best", metric="tvd").iter_rows(named=True):
        w = ("train", "bema").index(row["weights"])
        assert arrays["value"][0, w, ids.index(row["model"]), row["length"] - 1] == pytest.approx(row["value"])
    for row in scores(store).iter_rows(named=True):
        w = ("train", "bema").index(row["weights"])
        assert arrays["mean"][0, w, ids.index(row["model"])] == pytest.approx(row["score"])
        assert arrays["new"][0, w, ids.index(row["model"])] == pytest.approx(row["score_new"])
    curves = {name: curve(arrays, name) for name in ("score", "loss")}
    for row in store.table("curves").iter_rows(named=True):
        w, c = ("train", "bema").index(row["weights"]), gathered.checkpoints.index(row["step"])
        assert curves["score"][w, ids.index(row["model"]), c] == pytest.approx(row["score"], rel=1e-6)
        assert curves["loss"][ids.index(row["model"]), c] == pytest.approx(row["loss"], rel=1e-6)


def curve(arrays, name):
    """As the page unpacks it."""
    low, high = np.moveaxis(arrays[f"{name}-ends"].astype(float)[..., None, :], -1, 0)
    return np.where(arrays[name] == 65535, np.nan, low + (high - low) * arrays[name] / 65534)


def test_violins_are_of_all_of_new_and_of_each_length(store):
    gathered = Gathered(store)
    arrays = gathered.arrays()
    cell = next(cell for cell in gathered.cells if (cell["setting"], cell["variant"]) == (1, 0))  # trained to length 2
    rows = slice(cell["start"], cell["start"] + cell["count"])
    every = [arrays["mean"], arrays["new"], *np.moveaxis(arrays["value"], -1, 0)]
    for column, values in enumerate(every):
        found = arrays["ends"][0, gathered.cells.index(cell), 0, column]
        assert found[:2] == pytest.approx([values[0, 0, rows].min(), values[0, 0, rows].max()])
    assert arrays["new"][0, 0, rows] == pytest.approx(arrays["value"][0, 0, rows, 2])  # length 3 alone is new


def test_the_stages_are_told_with_counts(store, tmp_path):
    said = []
    write_report([store], tmp_path / "report.html", tell=said.append)
    assert all(text.startswith(f"{HOSTILE}: ") for text in said)
    for what in (
        "values of 64 models",
        r"densities, \d+ of \d+ groups",
        "curves of 64 models",
        "claims",
        r"packing \d+ MB",
    ):
        assert any(re.search(what, text) for text in said)


def test_matrices_are_those_of_the_inspection(store):
    from resharpen.analysis.inspection import inspect

    facts, arrays = run_data(store)
    (group,) = facts["inside"]
    ids = Gathered(store).models["model"].to_list()
    inspection = inspect(store, store.experiment.settings[1])
    table, row = inspection.find(f"{store.experiment.settings[1].name}/peri/3")
    at = group["models"].index(ids.index(f"{store.experiment.settings[1].name}/peri/3"))
    for kind, name in enumerate(("B", "D", "A_normalized")):
        scale = float(arrays["scale-4"][at, kind])
        assert arrays["inside-4"][at, kind] * scale / 32767 == pytest.approx(table[name][row], abs=scale / 32767)


def test_the_models_that_are_opened_up_are_the_best_and_an_even_sample():
    score = np.array([0.5, 0.1, np.nan, 0.4, 0.2, 0.3])
    assert _chosen(score, 6).tolist() == [0, 1, 3, 4, 5]
    assert _chosen(score, 4).tolist() == [0, 1, 4, 5]  # 0.1 and 0.2, then the first and the last of what is left
    assert _chosen(np.array([np.nan]), 3).tolist() == []


def test_no_infinity_reaches_the_page():
    assert finite({"a": (np.float64("nan"), float("inf"), 1.5, np.int64(3), "x", None)}) == {
        "a": [None, None, 1.5, 3, "x", None]
    }


def test_nothing_of_the_users_is_markup(store):
    text = report([store])
    head, rest = text.split("<title>", 1)
    assert rest.startswith("&lt;script&gt;window.hacked = 1")
    assert HOSTILE not in text
    assert re.search(r"default-src &#x27;none&#x27;; script-src (&#x27;sha256-[\w+/=]+&#x27; ){2}", head)
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", re.sub(r"<script.*?</script>", "", text, flags=re.S))


def test_a_run_without_results_and_a_place_that_cannot_be_written(tiny, store, tmp_path):
    unfinished = run(tiny, tmp_path / "r", workers=1, observer=STOP_AT_ONCE)
    with pytest.raises(UserError, match="no finished shard yet"):
        write_report([unfinished], tmp_path / "report.html")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        write_report([store], tmp_path / "file" / "report.html")


def test_the_command_writes_it_into_the_run_and_opens_it(store, capsys):
    with mock.patch("webbrowser.open") as shown:
        main(["report", str(store.directory), "--open"])
    path = store.directory / "report.html"
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    shown.assert_called_once_with(path.resolve().as_uri())
    with pytest.raises(SystemExit, match="2"):
        main(["report"])
    assert "report needs at least one run directory" in capsys.readouterr().err
