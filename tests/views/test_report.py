"""The report in a real browser: what a reader sees, points at, clicks, brushes and types."""

import os
import re
import shutil
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from make_reference import write_reference
from runs import STOP_AT_ONCE

import resharpen as rs
from resharpen.analysis.scores import scores
from resharpen.cli import main
from resharpen.errors import Failed, UserError
from resharpen.experiments.running.runner import run
from resharpen.experiments.specs.spec import Experiment, Setting
from resharpen.experiments.specs.variant import Variant
from resharpen.models import Minimal
from resharpen.tasks import SetComplement
from resharpen.views.report import write
from resharpen.views.report.gather import Gathered
from resharpen.views.report.inside import _chosen
from resharpen.views.report.pack import finite
from resharpen.views.report.write import report, run_data, write_report

pytestmark = pytest.mark.xdist_group("report")  # one browser, one page
HOSTILE = "<script>window.hacked = 1"
"""A run's name has no slash, so it cannot end a script; it could begin one."""
VARIANT = "<img src=x onerror='window.hacked=1'>"
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --use-gl=angle --use-angle=swiftshader --enable-unsafe-swiftshader"
)
DOTS = "#violins .scatterlayer .trace .points path"


def small(name="tiny", **changes) -> Experiment:
    """Two settings and two variants at v = 4."""
    experiment = Experiment(
        name=name,
        settings=tuple(Setting(SetComplement(4), s, Minimal(4, 3, 1, 3)) for s in (1, 2)),
        variants={name: Variant(name) for name in ("pre", "peri")},
        models=16,
        steps=12,
        batch=8,
        checkpoints=3,
        engine="torch",
    )
    return replace(experiment, **changes)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return run(small(HOSTILE), tmp_path_factory.mktemp("<b>runs") / "<i>r", workers=1)


@pytest.fixture(scope="module")
def browser():
    chromium = shutil.which("chromium")
    if chromium is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("there is no chromium: see `make chromium`")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=FLAGS.split())
        yield found
        found.close()


@pytest.fixture(scope="module")
def page(browser, store, tmp_path_factory):
    """One page for all: it must have no error and ask for nothing but itself."""
    path = tmp_path_factory.mktemp("out") / "report.html"
    with mock.patch.object(write, "run_data", hostile):
        write_report([store], path)
    page, problems = browser.new_page(viewport={"width": 1280, "height": 900}), []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith("file:") else problems.append(request.url))
    opened(page, path.as_uri())
    yield page
    assert problems == []
    assert page.evaluate("window.hacked") is None


def hostile(store):
    """What no spec allows: names that would like to be markup, wherever the page shows one."""
    facts, arrays = run_data(store)
    facts["variants"][0] = VARIANT
    facts["hyperparameters"][0]["name"] = facts["unit"] = VARIANT
    for finding in [finding for claim in facts["claims"] for finding in claim["findings"]]:
        finding["what"] = VARIANT
    for importance in facts["comparison"]["importance"]:
        importance["hyperparameter"] = VARIANT
    return facts, arrays


def opened(page, address: str) -> None:
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector("html[data-ready]")


def dot(page, number: int) -> tuple[float, float]:
    box = page.locator(DOTS).nth(number).bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_violins_have_the_densities_of_the_figure(tiny, tmp_path):
    """Widths to 1/255 of the widest, ends and ticks exactly: the first panel's halves in the order they were drawn."""
    store = run(replace(tiny, models=5), tmp_path / "r", workers=1)
    gathered, axes = Gathered(store), rs.draw(store)["figure"].axes[0]
    arrays = gathered.arrays()
    halves = [(cell, w) for cell in (0, 2) for w in (0, 1)]  # settings 1 and 2 of the first variant
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
    for row in store.table("curves").iter_rows(named=True):
        w, c = ("train", "bema").index(row["weights"]), gathered.checkpoints.index(row["step"])
        assert arrays["score"][w, ids.index(row["model"]), c] == pytest.approx(row["score"], rel=1e-3)
        assert arrays["loss"][ids.index(row["model"]), c] == pytest.approx(row["loss"], rel=1e-3)


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
        assert arrays["inside-4"][at, kind] * scale / 127 == pytest.approx(table[name][row], abs=scale / 127)


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
    with pytest.raises(Failed, match="cannot write"):
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


def test_every_model_is_a_dot_and_names_are_text(page, store):
    assert page.locator(DOTS).count() == 2 * len(store.table("models"))
    assert page.locator("#name").inner_text() == HOSTILE
    assert VARIANT in page.locator("#filters").inner_text()
    assert page.locator("#violins .annotation-text").first.text_content().startswith(VARIANT)
    assert page.locator("#about").inner_text().count("<i>r") >= 1


def test_hovering_shows_hyperparameters(page, store):
    page.mouse.move(*dot(page, 3))
    page.wait_for_selector("#tip:not([hidden])")
    said = page.locator("#tip").inner_text()
    name, value = said.splitlines()[0], float(re.search(r"mean TVD: ([\d.]+), training", said)[1])
    row = scores(store).filter(model=name.replace(VARIANT, "pre"), weights="train").row(0, named=True)
    assert value == pytest.approx(row["score"], rel=1e-3)
    assert f"{row['peak_learning_rate']:.3g}"[:3] in said.split("peak learning rate")[1]


def test_clicking_pins_and_the_address_says_so(page, store):
    page.mouse.move(*dot(page, 40))
    name = page.locator("#tip .id").inner_text()
    page.mouse.click(*dot(page, 40))
    page.wait_for_selector("#model .id")
    assert page.locator("#model .id").inner_text() == name
    assert page.locator("#model .siblings button").count() == 2
    assert page.locator("#model figure").count() == 6  # length, score, loss, B, D, attention
    drawn = page.evaluate("Array.from(document.querySelector('#model .plot').data[0].y)")
    rows = (
        store.table("lengths")
        .filter(model=name.replace(VARIANT, "pre"), weights="train", selection="best", metric="tvd")
        .sort("length")
    )
    assert drawn == pytest.approx(rows["value"].to_list())
    assert page.evaluate("new URLSearchParams(location.hash.slice(1)).get('model')") == name
    page.keyboard.press("Escape")
    assert page.locator("#model").inner_text() == ""
    assert page.evaluate("location.hash") == ""


def test_an_address_opens_at_a_model(page):
    setting = setting_name(1)
    opened(page, f"{page.url.split('#')[0]}#model={setting}/peri/5")
    assert page.locator("#model .id").inner_text() == f"{setting}/peri/5"
    page.evaluate(f"location.hash = '#model={setting}/peri/6'")
    page.wait_for_function("document.querySelector('#model .id').textContent.endsWith('/6')")
    page.keyboard.press("Escape")


def setting_name(i: int) -> str:
    return small().settings[i].name


def test_arrow_keys_move_through_models_and_enter_pins(page, store):
    """The first dot is the lowest of the first half violin; up is the next by value, right the other half."""
    page.focus("#violins")
    first = scores(store).filter(setting=setting_name(0), variant="pre", weights="train").sort("score")["model"]
    for key, name in (("ArrowRight", first[0]), ("ArrowUp", first[1]), ("ArrowUp", first[2]), ("ArrowDown", first[1])):
        page.keyboard.press(key)
        assert page.locator("#tip .id").inner_text() == name.replace("pre", VARIANT)
    page.keyboard.press("ArrowRight")
    assert "BEMA" in page.locator("#tip").inner_text()
    pointed = page.locator("#tip .id").inner_text()
    page.keyboard.press("Enter")
    assert page.locator("#model .id").inner_text() == pointed
    page.keyboard.press("Escape")
    assert page.locator("#model .id").count() == 0


def test_brushing_an_axis_selects_everywhere(page, store):
    """From the lowest to beyond the middle of the score: exactly the models that are below."""
    page.locator("#parallel").scroll_into_view_if_needed()
    box = page.locator("#parallel .draglayer .nsewdrag").first.bounding_box()
    axes = page.evaluate("document.getElementById('parallel').layout.xaxis.range")
    last = round(axes[1] - 0.3)
    x = box["x"] + box["width"] * (last - axes[0]) / (axes[1] - axes[0])
    page.mouse.move(x - 9, box["y"] + box["height"] * 0.5)
    page.mouse.down()
    page.mouse.move(x + 5, box["y"] + box["height"] * 0.8, steps=3)
    page.mouse.move(x + 9, box["y"] + box["height"] - 1, steps=3)
    page.mouse.up()
    page.wait_for_selector("#chosen button")
    score = scores(store).filter(weights="train")["score"].to_numpy()
    middle = score.min() + 0.5 * np.ptp(score)
    below = int((score < middle).sum())
    found = int(re.match(r"(\d+) of 64 models selected", page.locator("#chosen").inner_text())[1])
    assert abs(found - below) <= 2  # a pixel more or less
    bright = f"[...document.querySelectorAll('{DOTS}')].filter((dot) => dot.style.opacity > 0.5).length"
    assert page.evaluate(bright) == 2 * found
    assert lines(page) == found
    page.locator("#chosen button").click()
    assert page.locator("#chosen").inner_text() == ""
    assert page.evaluate(bright) == 2 * 64


def lines(page) -> int:
    """Models that the parallel coordinates show in front: every line ends with a gap."""
    return page.evaluate(
        "[1, 2].flatMap((k) => document.getElementById('parallel').data[k].x).filter((x) => x === null).length"
    )


def test_a_box_over_a_panel_selects_its_models(page):
    page.locator("#violins").scroll_into_view_if_needed()
    box = page.locator("#violins .draglayer .nsewdrag").nth(1).bounding_box()
    page.mouse.move(box["x"] + 2, box["y"] + 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + box["height"] - 2, steps=4)
    page.mouse.up()
    page.wait_for_selector("#chosen button")
    assert page.locator("#chosen").inner_text().startswith(f"32 of 64 models selected: {VARIANT} 0, peri 32")
    assert lines(page) == 32
    page.keyboard.press("Escape")
    assert page.locator("#chosen").inner_text() == ""
    assert lines(page) == 64


def test_filters(page):
    page.locator("#filters button", has_text="BEMA").click()
    assert page.locator(DOTS).count() == 64
    page.locator("#filters button", has_text="peri").click()
    assert page.locator(DOTS).count() == 32
    assert "peri" not in page.locator("#violins").inner_text()
    by = page.locator("#filters select", has_text="input length")
    by.select_option("input length")
    assert page.locator(DOTS).count() == 3 * 16  # lengths, models of one setting
    assert "input length" in page.locator("#violins").inner_text()
    by.select_option("setting")
    page.locator("#filters select", has_text="length 3").select_option("length 3")
    assert page.locator(DOTS).count() == 32
    for name in ("BEMA", "peri"):
        page.locator("#filters button", has_text=name).click()
    assert page.locator(DOTS).count() == 128


def test_light_dark_narrow_and_print(page):
    def background() -> str:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light = background()
    page.locator("#theme").click()
    assert background() != light
    page.locator("#theme").click()
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("document.documentElement.dataset.theme === 'dark'")
    page.emulate_media(color_scheme="light", media="print")
    assert not page.locator("#filters").is_visible()
    page.emulate_media(media="screen")
    page.set_viewport_size({"width": 390, "height": 800})
    page.wait_for_function("document.querySelector('#violins').layout.grid.columns === 1")
    page.wait_for_function("document.documentElement.scrollWidth === 390")
    page.set_viewport_size({"width": 1280, "height": 900})


def test_several_runs_have_a_front_page(browser, store, tmp_path):
    other = run(small("other", models=3, settings=small().settings[:1]), tmp_path / "o", workers=1)
    write_report([store, other], tmp_path / "both.html")
    page = browser.new_page()
    opened(page, (tmp_path / "both.html").as_uri())
    assert page.locator(".card").count() == 2
    assert "undecided at this scale" in page.locator(".card").first.inner_text()
    page.locator(".card a", has_text="other").click()
    page.wait_for_selector("#run:not([hidden]) " + DOTS.removeprefix("#violins "))
    assert page.locator("#name").inner_text() == "other"
    assert page.locator(DOTS).count() == 3 * 2 * 2 * 3  # lengths, as there is one setting; weights, variants, models
    page.close()


def test_a_reference_has_a_page_without_weights_and_curves(browser, store, tmp_path):
    kept = write_reference(store, scores(store), tmp_path / "kept")
    main(["report", str(kept.directory), "--out", str(tmp_path / "kept.html")])
    page, problems = browser.new_page(viewport={"width": 1280, "height": 900}), []
    page.on("pageerror", lambda error: problems.append(str(error)))
    opened(page, (tmp_path / "kept.html").as_uri())
    page.mouse.click(*dot(page, 40))
    page.wait_for_selector("#model .id")
    assert page.locator("#model figure").count() == 1  # by length
    assert "neither weights nor curves" in page.locator("#model").inner_text()
    assert "4 of 4 kept" in page.locator("#about").inner_text()
    assert problems == []
    page.close()
