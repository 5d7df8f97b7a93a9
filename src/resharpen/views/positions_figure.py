"""The figure of the study of positions: the loss on longer inputs, and what recovers it, per task."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np

from resharpen.analysis.claims.positions import BASE, SPLIT, Losses
from resharpen.analysis.samples import MEDIAN
from resharpen.analysis.statistics import Interval, quantile_interval
from resharpen.views.palette import BLUE, GREEN, ORANGE, PURPLE, VERMILION
from resharpen.views.style import our_style
from resharpen.views.violins import plain_panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOSS = "loss on longer inputs"
COLORS = {LOSS: VERMILION, "masking far keys": BLUE, "a norm": GREEN, "log n": ORANGE}
WIDTH, ROW = 8.3, 0.2
"""Inches: of the figure, and from row to row."""
TITLE = 20
"""Characters in a line of the title of a column."""


@our_style()
def draw_positions(found: Sequence[Losses]) -> Figure:
    """One column per task. Top: the loss of `pre` with rope and without positions, and how much each change recovers.
    Bottom: the loss of every variant, and its distance from perfect on trained lengths."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    variants = list(dict.fromkeys(variant for each in found for variant in each.new))
    heights = [2 * (1 + len(SPLIT)) * ROW + 0.6, len(variants) * ROW + 0.6]
    figure = Figure(figsize=(WIDTH, sum(heights) + 1.3), layout="constrained", dpi=150)
    grid = figure.subplots(2, len(found), squeeze=False, gridspec_kw={"height_ratios": heights})
    for column, each in enumerate(found):
        _split(grid[0, column], each, named=column == 0)
        _every(grid[1, column], each, variants, named=column == 0)
        grid[0, column].set_title("\n".join(wrap(each.title, TITLE)), fontsize=8.5, fontweight="bold")
    draws = len(next(iter(found[0].new.values())).values_N)
    figure.suptitle(
        f"Loss on longer inputs, and what recovers it: medians over the {draws} draws that {BASE} learns best, "
        "95% intervals\n(loss: distance on longer minus trained lengths; TVD, or 1 - AUC; training weights, "
        "best checkpoint)",
        fontsize=9,
    )
    marks = [
        Line2D([], [], color=VERMILION, marker="o", label=LOSS),
        Line2D([], [], color=BLUE, marker="x", linestyle="", label="the same with far keys masked"),
        Line2D([], [], color=PURPLE, marker="D", markerfacecolor="white", linestyle="", label="on trained lengths"),
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=len(marks), frameon=False, fontsize=8)
    return figure


def _split(axes: Axes, each: Losses, named: bool) -> None:
    rows: list[tuple[str, str, Interval | None]] = []
    for base, name in ((BASE, "rope"), (f"{BASE}+nope", "no positions")):
        rows.append((LOSS, f"{name}: {LOSS}", each.median_lost(base) if base in each.new else None))
        for what in SPLIT:
            sample = each.recovered(what, base)
            interval = None if sample is None else quantile_interval(sample, MEDIAN, 0.0)
            rows.append((what, f"{name}: recovered by {what}", interval))
    for row, (what, _, interval) in enumerate(rows):
        if interval is not None:
            _interval(axes, row, interval, COLORS[what])
    _frame(axes, [label for _, label, _ in rows], named)


def _every(axes: Axes, each: Losses, variants: Sequence[str], named: bool) -> None:
    for row, variant in enumerate(variants):
        if variant in each.new:
            _interval(axes, row, each.median_lost(variant), VERMILION)
            trained = quantile_interval(each.trained[variant], MEDIAN, 0.0).estimate
            axes.plot(trained, row, "D", color=PURPLE, markerfacecolor="white", markersize=3.5)
        if variant in each.near:
            near = quantile_interval(each.near[variant] - each.trained[variant], MEDIAN, 0.0).estimate
            axes.plot(near, row, "x", color=BLUE, markersize=4.5)
    _frame(axes, variants, named)


def _interval(axes: Axes, row: int, interval: Interval, color: str) -> None:
    """An estimate and its interval; an unbounded end is not drawn."""
    ends = np.array([interval.low, interval.high])
    axes.plot(np.where(np.isfinite(ends), ends, interval.estimate), [row, row], color=color, linewidth=1.5)
    inside = color if np.isfinite(ends).all() else "white"
    axes.plot(interval.estimate, row, "o", color=color, markerfacecolor=inside, markersize=4)


def _frame(axes: Axes, labels: Sequence[str], named: bool) -> None:
    axes.axvline(0.0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(labels)), labels if named else [""] * len(labels), fontsize=7.5)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.locator_params(axis="x", nbins=4)
    axes.set_xlabel("distance from perfect", fontsize=7.5)
    axes.tick_params(axis="x", labelsize=7.5)
    plain_panel(axes, "x")
