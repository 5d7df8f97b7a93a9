"""Draw the pictures of README and docs: python tools/pictures.py [NAME ...]

Without names it draws all of them, from `reference/` and from runs that it trains itself in `runs/pictures`, which
takes some minutes. `report` is a screenshot and needs chromium.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch
from results import all_compared

import resharpen as rs
from resharpen.analysis.claims.positions import losses
from resharpen.analysis.dispersion import gains_from
from resharpen.analysis.published import SOURCES, Source
from resharpen.analysis.scores import scored_lengths
from resharpen.experiments.specs.shelf import STUDIES, take
from resharpen.parts import PLACEMENTS
from resharpen.views.anchors import draw_anchors
from resharpen.views.circuits import draw_dispersion, draw_run
from resharpen.views.compare_figure import draw_comparison, draw_remedies
from resharpen.views.inspection import COMPARED
from resharpen.views.palette import BLUE, KNOWN, ORANGE
from resharpen.views.positions_figure import draw_positions
from resharpen.views.style import our_style, picture
from resharpen.views.tasks_study import draw_tasks
from resharpen.views.violins import Look, darker, shade

ROOT = Path(__file__).parent.parent
IMAGES, RUNS = ROOT / "docs" / "images", ROOT / "runs" / "pictures"
WIDTH, DPI = 8.3, 150
"""GitHub shows a page 830 pixels wide: at this width in inches text has its size there."""
TRAINED = 3
"""The training length of the models in `hero`."""
SITES = {
    "embedding_out": "after the embedding",
    "block_in": "before attention or MLP",
    "block_out": "after attention or MLP",
    "residual": "after the addition",
    "unembedding_in": "before the unembedding",
}


def reference(name: str) -> Figure:
    return rs.draw(rs.reference(name), look=Look(WIDTH))["figure"]


@our_style()
def hero() -> Figure:
    """TVD by input length of models trained on at most three tokens: without and with a norm after attention."""
    run = rs.reference("fig1-overnight")
    rows = scored_lengths(run).filter(
        pl.col("metric") == "tvd", pl.col("weights") == "train", pl.col("setting") == f"sct-v9-s{TRAINED}"
    )
    figure = Figure(figsize=(8.3, 3.3), layout="constrained", dpi=DPI)
    panels = figure.subplots(1, 2, sharey=True)
    titles = {"pre": "pre: norm before attention only", "peri": "peri: norm before and after attention"}
    for axes, (variant, title) in zip(panels, titles.items(), strict=True):
        color = KNOWN[variant]
        of_variant = rows.filter(variant=variant).sort("draw", "length")
        lengths = sorted(of_variant["length"].unique())
        tvd_MxS = of_variant["value"].to_numpy().reshape(-1, len(lengths))
        axes.axvspan(0.5, TRAINED + 0.5, color="#DDDDDD", alpha=0.6, linewidth=0)
        axes.plot(lengths, tvd_MxS.T, color=color, alpha=0.16, linewidth=0.8)
        middle = np.median(tvd_MxS, axis=0)
        axes.plot(lengths, middle, color=darker(color), linewidth=2.6)
        axes.annotate(
            "median", (7, middle[6]), (-4, 10), textcoords="offset points", fontsize=10, ha="right", color=darker(color)
        )
        axes.plot(lengths, [length / 9 for length in lengths], color="black", linewidth=0.9, linestyle=":")
        axes.text(4.2, 0.56, "uniform guess", fontsize=9, rotation=33, ha="center", va="center")
        axes.set_title(title, fontsize=11)
        axes.set_xlabel("input length (tokens)")
        axes.set_xticks(lengths)
        axes.set(xlim=(0.5, 8.4), ylim=(0, 1))
        axes.spines[["top", "right"]].set_visible(False)
        axes.text((TRAINED + 1) / 2, 0.93, "trained", fontsize=9.5, ha="center")
        axes.text((TRAINED + 9) / 2, 0.93, "never seen in training", fontsize=9.5, ha="center")
    panels[0].set_ylabel("TVD from exact (0 is perfect)")
    steps, models = run.experiment.steps, len(rows.filter(variant="pre")["draw"].unique())
    figure.suptitle(
        f"Set Complement: {models} models per panel with random hyperparameters, none diverged, {steps:,} steps",
        fontsize=10,
    )
    return figure


@our_style()
def block() -> Figure:
    """One block of a transformer with the sites of its norms, and which placement has a norm at which."""
    figure = Figure(figsize=(8.3, 2.2), layout="constrained", dpi=DPI)
    drawing, table = figure.subplots(1, 2, width_ratios=(1.1, 1))
    _draw_block(drawing)
    _draw_placements(table)
    return figure


def _draw_block(axes: Axes) -> None:
    axes.set(xlim=(-0.2, 10.4), ylim=(-1.2, 3.1), aspect="equal")
    axes.axis("off")
    arrow = {"arrowstyle": "-|>", "color": "black", "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0}

    def box(x: float, y: float, width: float, text: str, norm: bool = False) -> None:
        face, edge = ("#FCE9C5", ORANGE) if norm else ("#E6F0F7", BLUE)
        style = "round,pad=0.02,rounding_size=0.12"
        axes.add_patch(
            FancyBboxPatch((x - width / 2, y - 0.38), width, 0.76, boxstyle=style, fc=face, ec=edge, zorder=1)
        )
        axes.text(x, y, text, ha="center", va="center", fontsize=8)

    def line(*points: tuple[float, float]) -> None:
        axes.plot(*zip(*points[:-1], strict=True), color="black", linewidth=1.1, zorder=0)
        axes.annotate("", points[-1], points[-2], arrowprops=arrow, zorder=0)

    line((0.5, 0.0), (7.68, 0.0))
    line((2.4, 0.0), (2.4, 2.6), (2.95, 2.6))
    line((7.35, 2.6), (7.9, 2.6), (7.9, 0.22))
    box(0.55, 0, 1.3, "embed")
    box(1.75, 0, 0.62, "A", norm=True)
    box(3.3, 2.6, 0.62, "B", norm=True)
    line((3.65, 2.6), (3.95, 2.6))
    box(5.1, 2.6, 2.2, "attention\nor MLP")
    line((6.25, 2.6), (6.65, 2.6))
    box(7.0, 2.6, 0.62, "C", norm=True)
    axes.add_patch(Circle((7.9, 0), 0.22, fc="white", ec="black"))
    axes.text(7.9, 0, "+", ha="center", va="center", fontsize=10)
    line((8.12, 0.0), (9.9, 0.0))
    box(8.65, 0, 0.5, "D", norm=True)
    box(9.35, 0, 0.5, "E", norm=True)
    axes.text(10.0, 0.0, "output", fontsize=8, va="center")
    axes.text(5.0, 0.16, "residual stream", fontsize=8, ha="center", color="#555555")
    axes.text(5.0, -0.95, "A to E: sites where a norm can stand", fontsize=8.5, ha="center")


def _draw_placements(axes: Axes) -> None:
    axes.axis("off")
    names = ("pre", "post", "peri", "peri-init")
    rows = [
        [f"{letter}  {text}", *("●" if getattr(PLACEMENTS[name], site) else "" for name in names)]
        for letter, (site, text) in zip("ABCDE", SITES.items(), strict=True)
    ]
    table = axes.table(
        rows, colLabels=["", *names], colWidths=[0.55, *[0.12] * 3, 0.19], loc="center", cellLoc="center"
    )
    table.auto_set_font_size(False)
    table.set_fontsize(8)
    table.scale(1, 1.35)
    for (row, column), cell in table.get_celld().items():
        cell.set_linewidth(0)
        if column == 0:
            cell.set_text_props(ha="left")
        if row and row % 2:
            cell.set_facecolor("#F4F4F4")


def remedies() -> Figure:
    return draw_remedies([rs.compare(rs.reference(f"remedies-{name}-laptop")) for name in ("sct", "max", "dyck")])


def tasks() -> Figure:
    gains = gains_from(pl.read_csv(ROOT / "reference/studies/tasks-laptop-gains.csv"))
    experiment = take(STUDIES["tasks"][0], "laptop")
    return draw_tasks(gains, f"{experiment.models} draws, {experiment.steps:,} steps")


def positions() -> Figure:
    return draw_positions(losses(pl.read_csv(ROOT / "reference/studies/positions-laptop-distances.csv")))


def comparison() -> Figure:
    """Of the example in the README."""
    return draw_comparison(rs.compare(rs.run(rs.read_toml(ROOT / "examples/my_norm.toml"), RUNS / "my_norm")))


def placements_run() -> rs.Run:
    return rs.run(rs.figure("placements", "laptop").with_changes(models=32), RUNS / "placements")


def placements() -> Figure:
    return rs.draw(placements_run(), look=Look(WIDTH))["figure"]


def dispersion() -> Figure:
    """Of the models of `placements` that were trained on at most three tokens."""
    run = placements_run()
    setting = next(setting for setting in run.experiment.settings if setting.train_length == TRAINED)
    tables = rs.inspect(run, setting).tables
    return draw_dispersion({name: tables[name] for name in COMPARED}, setting.train_length)


def inside() -> Figure:
    """Models of figure 1 that were trained on at most five tokens, of which many merge two."""
    figure1 = rs.figure("fig1", "laptop")
    settings = tuple(setting for setting in figure1.settings if setting.train_length == 5)
    run = rs.run(replace(figure1, name="inside", settings=settings, models=32, steps=50_000), RUNS / "inside")
    inspection = rs.inspect(run, settings[0])
    decay = {variant: rows["weight_decay"].to_numpy() for variant, rows in inspection.models.items()}
    return draw_run(inspection.tables, decay)


@our_style()
def rope() -> Figure:
    """How near RoPE shows a key, by its distance."""
    distances = np.arange(1, 501)
    fastest = 10_000.0 ** (-np.arange(3) / 8)  # radians per token, as in examples/distances.py
    alike = np.cos(np.outer(distances, fastest)).mean(1)
    figure = Figure(figsize=(WIDTH, 2.6), layout="constrained", dpi=DPI)
    axes = figure.subplots()
    shade(axes, 100.5, start=0)
    axes.plot(distances, alike, color=BLUE, linewidth=0.7)
    for i in sorted(100 + np.argsort(alike[100:])[-4:]):
        axes.plot(distances[i], alike[i], "o", color=ORANGE, markersize=4)
        text = {"textcoords": "offset points", "ha": "center", "fontsize": 9}
        axes.annotate(str(distances[i]), (distances[i], alike[i]), (0, 5), **text)
    axes.text(50, 1.09, "trained", fontsize=9, ha="center")
    axes.set(xlim=(0, 505), ylim=(-1, 1.25), xlabel="distance of a key (tokens)")
    axes.set_ylabel("mean cosine of\nthe three fastest pairs")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def report() -> bytes:
    """The first screen of the report of figure 1, as a browser shows it."""
    from playwright.sync_api import sync_playwright

    from resharpen.views.report.write import write_report

    with tempfile.TemporaryDirectory() as directory, sync_playwright() as playwright:
        page_file = Path(directory) / "report.html"
        write_report([rs.reference("fig1-overnight")], page_file)
        chromium = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 1190}, device_scale_factor=1.25)
        page.goto(page_file.as_uri())
        page.wait_for_selector("html[data-ready]")
        page.wait_for_timeout(1_500)  # charts are drawn after the page has loaded
        shot = page.screenshot()
        browser.close()
    return shot


def anchors(source: Source) -> Figure:
    """Published numbers of a source, and the draws of those references that there are."""
    return draw_anchors(all_compared(), [source])


PICTURES: dict[str, Callable[[], Figure | bytes]] = {
    "hero": hero,
    "block": block,
    "rope": rope,
    "remedies": remedies,
    "tasks": tasks,
    "positions": positions,
    **{source.picture: partial(anchors, source) for source in SOURCES},
    **{f"fig{n}-overnight": partial(reference, f"fig{n}-overnight") for n in (1, 2, 3, 4, 5)},
    "fig6-overnight": partial(reference, "fig6-7-overnight"),
    "report": report,
    "placements": placements,
    "dispersion": dispersion,
    "inside-s5": inside,
    "comparison": comparison,
}


def main(*names: str) -> None:
    for name in names or PICTURES:
        made = PICTURES[name]()
        (IMAGES / f"{name}.png").write_bytes(made if isinstance(made, bytes) else picture(made, "png"))
        print(f"docs/images/{name}.png", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
