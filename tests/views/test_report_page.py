"""The report in a real browser: what a reader sees, points at, clicks, taps, brushes, types and shares."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest
from make_reference import write_reference
from report_page import CONTRAST, DOTS, HOSTILE, VARIANT, dot, drag_along_axis, hovered, lines, opened, small

from resharpen.analysis.compare import compare
from resharpen.analysis.scores import scores
from resharpen.cli import main
from resharpen.experiments.running.runner import run
from resharpen.views.report.write import write_report

pytestmark = pytest.mark.xdist_group("report")  # one browser, one page


def test_every_model_is_a_dot_and_names_are_text(page, store):
    assert page.locator(DOTS).count() == 2 * len(store.table("models"))
    assert page.locator("#name").inner_text() == VARIANT
    assert HOSTILE in page.locator("#lead").inner_text()
    for place in ("#filters", "#headline", "#best"):
        assert VARIANT in page.locator(place).inner_text()
    assert page.locator("#violins .annotation-text", has_text=VARIANT).count() == 1
    assert page.locator("#about").inner_text().count("<i>r") >= 1


def test_the_finding_comes_first(page, store):
    """Title, a row per variant with gain, interval, adjusted p and pairs; then what is open of each claim."""
    (effect,) = compare(store).headlines()
    said = page.locator(".gains tbody tr").first.inner_text()
    gain = effect.median
    assert said.startswith("peri")
    assert "norms before attention, after attention, before the unembedding" in said
    assert f"{gain.interval.estimate:+.3f}".replace("-", "\N{MINUS SIGN}") in said
    assert gain.verdict in said
    assert re.search(r"p [=<] [\d.]+", said)
    assert re.search(r"p = 1, \+48 models", said)
    assert f"{effect.wins.estimate:.0%}" in said
    order = [page.locator(f"#{name}").bounding_box()["y"] for name in ("name", "headline", "claims", "look", "among")]
    assert order == sorted(order)
    assert "0 of 3 findings hold; open: peri, s = 1, 2; peri - pre, s = 1" in page.locator("#claims").inner_text()
    page.evaluate("document.querySelectorAll('#claims details').forEach((claim) => { claim.open = true; })")
    page.wait_for_selector("#claims table >> nth=1")
    assert "no interval: too few models" in page.locator("#claims").inner_text()
    assert "0 to 1" not in page.locator("#claims").inner_text()


def test_new_lengths_are_the_default(page):
    assert page.locator("#filters select", has_text="new lengths").input_value() == "new lengths"
    assert "on new lengths" in page.locator("#violins-title").inner_text()


def test_hovering_shows_hyperparameters(page, store):
    said = hovered(page, 3)
    name, value = said.splitlines()[0], float(re.search(r"TVD, new lengths: ([\d.]+), training", said)[1])
    row = scores(store).filter(model=name.replace(VARIANT, "pre"), weights="train").row(0, named=True)
    assert value == pytest.approx(row["score_new"], rel=1e-3)
    assert f"{row['peak_learning_rate']:.3g}"[:3] in said.split("peak learning rate")[1]


def test_a_click_hides_the_tip_and_shows_the_card_beside(page, store):
    name = hovered(page, 40).splitlines()[0]
    x, y = dot(page, 40)
    page.mouse.click(x, y)
    page.wait_for_selector("#model .id")
    assert not page.locator("#tip").is_visible()
    box = page.locator("#model").bounding_box()
    assert (box["y"], box["height"]) == (0, 900)
    assert not box["x"] <= x <= box["x"] + box["width"]
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
    attention = "document.querySelectorAll('#model .plot')[5]._fullData[0]"
    low, high, most = page.evaluate(f"[{attention}.zmin, {attention}.zmax, Math.max(...{attention}.z.flat())]")
    assert (low, high) == (0, pytest.approx(most))  # uniform attention has one color
    assert page.evaluate("new URLSearchParams(location.hash.slice(1)).get('model')") == name
    page.keyboard.press("Escape")
    assert not page.locator("#model").is_visible()
    assert page.evaluate("location.hash") == ""


def test_an_address_opens_at_a_model(page, address):
    setting = setting_name(1)
    opened(page, f"{address}#model={setting}/peri/5")
    assert page.locator("#model .id").inner_text() == f"{setting}/peri/5"
    page.evaluate(f"location.hash = '#model={setting}/peri/6'")
    page.wait_for_function("document.querySelector('#model .id').textContent.endsWith('/6')")
    page.keyboard.press("Escape")
    page.evaluate("location.hash = '#model=sct-v4-s1/peri/99'")
    page.wait_for_selector("#unknown:not(:empty)")
    assert "There is no model 'sct-v4-s1/peri/99'" in page.locator("#unknown").inner_text()
    assert not page.locator("#model").is_visible()
    page.evaluate("location.hash = ''")
    page.wait_for_selector("#unknown:empty", state="attached")


def setting_name(i: int) -> str:
    return small().settings[i].name


def test_arrow_keys_move_through_models_and_enter_pins(page, store):
    """The first dot is the lowest of the first half violin; up is the next by value, right the other half."""
    page.focus("#violins")
    first = scores(store).filter(setting=setting_name(0), variant="pre", weights="train").sort("score_new")["model"]
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


def test_brushing_an_axis_selects_everywhere_and_counts(page, store, tmp_path):
    """A straight drag from the middle of the score to its lowest: exactly the models that are below."""
    drag_along_axis(page, -1, 0.5, 1.0)
    page.wait_for_selector("#chosen .head")
    table = scores(store).filter(weights="train")
    score = table["score_new"].to_numpy()
    middle = score.min() + 0.5 * np.ptp(score)
    said = page.locator("#chosen").inner_text()
    found = int(re.search(r"(\d+) of 64 models selected", said)[1])
    assert abs(found - int((score < middle).sum())) <= 2  # a pixel more or less
    limit = float(re.search(r"TVD \S+ to ([\d.]+)", said)[1])
    assert limit == pytest.approx(middle, abs=0.02 * np.ptp(score))
    bright = f"[...document.querySelectorAll('{DOTS}')].filter((dot) => dot.style.opacity > 0.5).length"
    assert page.evaluate(bright) == 2 * found
    assert lines(page) == found
    assert f"{found} of {found} selected models drawn as lines" in page.locator("#drawn").inner_text()
    inside = table.filter(table["score_new"] < limit + 1e-3)
    peri = page.locator("#chosen tbody tr", has_text="peri").inner_text().split("\t")
    values = inside.filter(variant="peri")["score_new"]
    assert peri[1] == f"{len(values)} of 32"
    assert float(peri[2]) == pytest.approx(float(values.median()), rel=5e-3)
    rest = table.filter(table["score_new"] >= limit + 1e-3, variant="peri")["score_new"]
    assert float(peri[3]) == pytest.approx(float(rest.median()), rel=5e-3)
    assert page.locator("#chosen svg").count() == 2
    with page.expect_download() as download:
        page.locator("#chosen button", has_text="CSV").click()
    rows = list(csv.DictReader(Path(download.value.path()).read_text().splitlines()))
    assert {row["model"].replace(VARIANT, "pre") for row in rows} == set(inside["model"])
    first = table.filter(model=rows[0]["model"].replace(VARIANT, "pre")).row(0, named=True)
    assert float(rows[0]["tvd_train_new"]) == pytest.approx(first["score_new"], rel=1e-6)
    page.locator("#chosen button", has_text="Clear").click()
    assert not page.locator("#chosen").is_visible()
    assert page.evaluate(bright) == 2 * 64


def test_a_drag_brushes_the_axis_nearest_to_where_it_began(page):
    """A straight one beside the axis, and one that ends on another axis."""
    for beside, sideways in ((0.4, 0.0), (-0.4, 0.0), (0.05, 150.0)):
        drag_along_axis(page, 2, 0.2, 0.6, beside, sideways)
        shapes = page.evaluate("document.getElementById('parallel').layout.shapes")
        assert [shape["x0"] for shape in shapes if shape["type"] == "rect"] == [pytest.approx(2 - 0.09)]
        page.keyboard.press("Escape")


def test_a_shared_address_shows_the_same(page, address):
    """Filters, a brush and a box over a panel."""
    page.locator("#filters select", has_text="new lengths").select_option("length 3")
    drag_along_axis(page, 3, 0.1, 0.8)
    page.locator("#violins").evaluate("(plot) => plot.scrollIntoView({ behavior: 'instant', block: 'center' })")
    box = page.locator("#violins .draglayer .nsewdrag").nth(1).bounding_box()
    page.mouse.move(box["x"] + 2, box["y"] + 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + box["height"] * 0.6, steps=4)
    page.mouse.up()
    page.wait_for_selector("#chosen .chip >> nth=1")
    page.locator("#filters button", has_text="BEMA").click()
    shown = [page.locator(place).inner_text() for place in ("#chosen", "#violins-title", "#drawn")]
    pressed = page.locator("#filters button[aria-pressed=true]").all_inner_texts()
    shared = page.url
    opened(page, shared)
    assert [page.locator(place).inner_text() for place in ("#chosen", "#violins-title", "#drawn")] == shown
    assert page.locator("#filters button[aria-pressed=true]").all_inner_texts() == pressed
    assert page.url == shared
    opened(page, address)
    assert not page.locator("#chosen").is_visible()


def test_a_box_over_a_panel_selects_its_models(page):
    page.locator("#violins").evaluate("(plot) => plot.scrollIntoView({ behavior: 'instant', block: 'center' })")
    box = page.locator("#violins .draglayer .nsewdrag").nth(1).bounding_box()
    page.mouse.move(box["x"] + 2, box["y"] + 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + box["height"] - 2, steps=4)
    page.mouse.up()
    page.wait_for_selector("#chosen .head")
    said = page.locator("#chosen").inner_text()
    assert "32 of 64 models selected" in said
    assert "box in peri" in said
    assert lines(page) == 32
    page.keyboard.press("Escape")
    assert not page.locator("#chosen").is_visible()
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
    page.locator("#filters select", has_text="length 3").select_option("new lengths")
    for name in ("BEMA", "peri"):
        page.locator("#filters button", has_text=name).click()
    assert page.locator(DOTS).count() == 128
    assert page.evaluate("location.hash") == ""


def test_the_guess_of_each_length_is_a_line_above_the_band(page):
    """On Set Complement a uniform guess is off by i / v at length i."""
    page.locator("#filters select", has_text="input length").select_option("input length")
    plot = "document.getElementById('violins')"
    drawn = page.evaluate(f"{plot}.data.filter((trace) => trace.name === 'guess').map((trace) => [trace.x, trace.y])")
    assert len(drawn) == 2  # one per variant
    for x, y in drawn:
        assert x == [-0.5, 0.5, 0.5, 1.5, 1.5, 2.5]
        assert y == pytest.approx(np.repeat([1 / 4, 2 / 4, 3 / 4], 2))
    bands = page.evaluate(f"{plot}.layout.shapes.filter((shape) => shape.type === 'rect').map((shape) => shape.layer)")
    assert set(bands) == {"below"}
    assert page.locator("#violins .annotation-text", has_text="guess").count() == 2
    page.locator("#filters select", has_text="input length").select_option("setting")
    new = page.evaluate(f"{plot}.data.find((trace) => trace.name === 'guess').y")
    assert new == pytest.approx(np.repeat([(2 / 4 + 3 / 4) / 2, 3 / 4], 2))  # longer than 1, longer than 2


def test_every_chart_has_a_table(page, store):
    charts = page.locator("#run .plot:visible").count()
    buttons = page.locator("#run button", has_text="Show as table")
    assert buttons.count() == charts
    page.locator("#violins-head button").click()
    assert not page.locator("#violins").is_visible()
    cells = page.locator("#look tbody tr").first.locator("td").all_inner_texts()
    values = scores(store).filter(setting=setting_name(0), variant="pre", weights="train")["score_new"]
    assert cells[:3] == [VARIANT, "s = 1", "16"]
    assert float(cells[3]) == pytest.approx(float(values.median()), rel=1e-3)
    page.locator("#violins-head button").click()
    assert page.locator("#violins").is_visible()
    page.locator("#among-head button").click()
    assert page.locator("#among tbody tr").count() == page.locator("#strips .strip").count()
    page.locator("#among-head button").click()


def test_text_has_contrast_in_light_and_dark(page):
    page.mouse.click(*dot(page, 40))
    page.wait_for_selector("#model figure >> nth=5")
    drag_along_axis(page, 3, 0.1, 0.8)
    page.locator("#claims summary").first.click()
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        page.wait_for_function(f"document.documentElement.dataset.theme === '{theme}'")
        page.wait_for_timeout(100)
        found = page.evaluate(CONTRAST)
        assert len(found) > 100
        assert [text for ratio, text in found if ratio < 4.5] == []
    page.emulate_media(color_scheme="light")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")


def test_pressed_buttons_differ_in_forced_colors(page):
    page.emulate_media(forced_colors="active")
    page.locator("#filters button", has_text="BEMA").click()
    looks = [
        page.locator(f"#filters button[aria-pressed={on}]").first.evaluate("(e) => getComputedStyle(e).backgroundColor")
        for on in ("true", "false")
    ]
    assert looks[0] != looks[1]
    page.locator("#filters button", has_text="BEMA").click()
    page.emulate_media(forced_colors="none")


def test_light_dark_narrow_and_print(page):
    def background() -> str:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light = background()
    page.locator("#theme").click()
    assert background() != light
    page.locator("#theme").click()
    page.emulate_media(color_scheme="light", media="print")
    assert not page.locator("#filters").is_visible()
    assert page.locator("#violins-head").evaluate("(e) => getComputedStyle(e).breakAfter") == "avoid"
    page.emulate_media(media="screen")
    page.set_viewport_size({"width": 390, "height": 800})
    page.wait_for_function("document.querySelector('#violins').layout.grid.columns === 1")
    page.wait_for_function("document.documentElement.scrollWidth === 390")
    page.set_viewport_size({"width": 1280, "height": 900})


def test_a_tap_on_a_phone_shows_the_card_at_the_bottom(browser, address):
    context = browser.new_context(viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True)
    page = context.new_page()
    opened(page, address)
    page.touchscreen.tap(*dot(page, 20))
    page.wait_for_selector("#model .id")
    page.wait_for_timeout(300)  # it scrolls
    box = page.locator("#model").bounding_box()
    assert (box["x"], box["width"]) == (0, 390)
    assert box["y"] + box["height"] == pytest.approx(800, abs=1)
    assert page.locator(DOTS).nth(20).bounding_box()["y"] < box["y"]
    assert not page.locator("#tip").is_visible()
    context.close()


def test_many_models_per_violin_are_a_density_with_some_dots(browser, store, page, tmp_path):
    """At most 60 dots and the extremes per half; of fewer than 30 models there is no density."""
    tiny = small("many", models=160, steps=2, checkpoints=1, settings=small().settings[1:])
    many = run(tiny, tmp_path / "m", workers=1)
    write_report([many], tmp_path / "many.html")
    other = browser.new_page(viewport={"width": 1280, "height": 900})
    opened(other, (tmp_path / "many.html").as_uri())
    fill = "document.getElementById('violins').data.filter((t) => t.fill === 'toself').map((t) => t.x.length)"
    assert set(page.evaluate(fill)) == {0}
    assert min(other.evaluate(fill)) > 0
    dots = "document.getElementById('violins').data.filter((t) => t.mode === 'markers').map((t) => [t.x, t.y])"
    drawn = [np.array(xy, float) for xy in other.evaluate(dots)]
    assert all((np.bincount(np.round(x).astype(int)) == 62).all() for x, _ in drawn)  # three lengths
    values = many.table("lengths").filter(selection="best", metric="tvd", weights="train", length=3)
    values = values.filter(values["model"].str.contains("/pre/"))["value"]
    x, y = drawn[0]
    at_3 = y[np.round(x) == 2]
    assert (at_3.min(), at_3.max()) == pytest.approx((values.min(), values.max()))
    other.close()


def test_several_runs_have_a_front_page(browser, store, tmp_path):
    other = run(small("other", models=3, settings=small().settings[:1]), tmp_path / "o", workers=1)
    write_report([store, other], tmp_path / "both.html")
    page = browser.new_page()
    opened(page, (tmp_path / "both.html").as_uri())
    assert page.locator(".card").count() == 2
    assert all("lower is better" in text for text in page.locator(".card").all_inner_texts())
    heads = page.locator(".matrix th").all_inner_texts()
    assert heads == ["claim", HOSTILE, "other"]
    assert "? open" in page.locator(".matrix tbody").inner_text()
    assert page.locator(".card .annotation-text").all_text_contents().count("■ peri") == 2
    page.locator("#runs a", has_text="other").click()
    page.wait_for_selector("#run:not([hidden]) " + DOTS.removeprefix("#violins "))
    assert "other" in page.locator("#lead").inner_text()
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
    assert "4 of 4 stored" in page.locator("#about").inner_text()
    assert problems == []
    page.close()
