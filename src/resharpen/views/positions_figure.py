"""The figure of the study of positions: the loss on longer inputs, and what recovers it, per task."""

from __future__ import annotations

from collections.abc import Sequence
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

LOST = "lost at length"
COLORS = {LOST: VERMILION, "no far keys": BLUE, "a norm": GREEN, "log n": ORANGE}
COLUMN, ROW = 3.2, 0.24


@our_style()
def draw_positions(found: Sequence[Losses]) -> Figure:
    """One column per task. Top: the loss of `pre` with rope and without positions, and how much each change recovers.
    Bottom: the loss of every variant, and its distance from perfect on trained lengths."""
    from matplotlib.figure import Figure

    variants = list(dict.fromkeys(variant for each in found for variant in each.new))
    heights = [2 * (1 + len(SPLIT)) * ROW + 1.0, len(variants) * ROW + 1.0]
    size = (1.8 + COLUMN * len(found), sum(heights) + 1.2)
    figure = Figure(figsize=size, layout="constrained", dpi=150)
    grid = figure.subplots(2, len(found), squeeze=False, gridspec_kw={"height_ratios": heights})
    for column, each in enumerate(found):
        _split(grid[0, column], each, named=column == 0)
        _every(grid[1, column], each, variants, named=column == 0)
        grid[0, column].set_title(each.title, fontsize=10, fontweight="bold")
    draws = len(next(iter(found[0].new.values())).values_N)
    figure.suptitle(
        f"What is lost at length, and what brings it back: medians over the {draws} draws that {BASE} learns best, "
        "95% intervals\n(training weights at the best checkpoint; distance from perfect: TVD, or 1 - AUC)",
        fontsize=10,
    )
    return figure


def _split(axes: Axes, each: Losses, named: bool) -> None:
    rows: list[tuple[str, str, Interval | None]] = []
    for base, name in ((BASE, "rope"), (f"{BASE}+nope", "no positions")):
        rows.append((LOST, f"{name}: {LOST}", each.median_lost(base) if base in each.new else None))
        for what in SPLIT:
            sample = each.brought_back(what, base)
            interval = None if sample is None else quantile_interval(sample, MEDIAN, 0.0)
            rows.append((what, f"{name}: back with {what}", interval))
    for row, (what, _, interval) in enumerate(rows):
        if interval is not None:
            _interval(axes, row, interval, COLORS[what])
    _frame(axes, [label for _, label, _ in rows], named, "distance from perfect")


def _every(axes: Axes, each: Losses, variants: Sequence[str], named: bool) -> None:
    for row, variant in enumerate(variants):
        if variant in each.new:
            _interval(axes, row, each.median_lost(variant), VERMILION)
            trained = quantile_interval(each.trained[variant], MEDIAN, 0.0).estimate
            axes.plot(trained, row, "D", color=PURPLE, markerfacecolor="white", markersize=4)
        if variant in each.near:
            near = quantile_interval(each.near[variant] - each.trained[variant], MEDIAN, 0.0).estimate
            axes.plot(near, row, "x", color=BLUE, markersize=5)
    _frame(axes, variants, named, "lost (red); without far keys (blue);\ndistance on trained lengths (diamonds)")


def _interval(axes: Axes, row: int, interval: Interval, color: str) -> None:
    """An estimate and its interval; an unbounded end is not drawn."""
    ends = np.array([interval.low, interval.high])
    axes.plot(np.where(np.isfinite(ends), ends, interval.estimate), [row, row], color=color, linewidth=1.5)
    inside = color if np.isfinite(ends).all() else "white"
    axes.plot(interval.estimate, row, "o", color=color, markerfacecolor=inside, markersize=5)


def _frame(axes: Axes, labels: Sequence[str], named: bool, xlabel: str) -> None:
    axes.axvline(0.0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(labels)), labels if named else [""] * len(labels), fontsize=8)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_xlabel(xlabel, fontsize=8)
    axes.tick_params(axis="x", labelsize=7.5)
    plain_panel(axes, "x")
