"""Figures of comparisons: gains by setting, expected best of k draws, gains by length; and the study of remedies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from resharpen.analysis.claims.reading import THRESHOLD
from resharpen.analysis.compare import CHOSEN, EVERY, MARGIN, Comparison
from resharpen.analysis.statistics import Interval
from resharpen.views.palette import KNOWN, variant_colors
from resharpen.views.style import our_style
from resharpen.views.violins import GRAY, plain_panel, shade

# Markers and dashes distinguish more variants than there are colors.
MARKERS, DASHES = "osD^vPX", ("-", "--", ":", "-.")
LINE = {"markersize": 4, "linewidth": 1.3}
COLUMN, MOST_COLUMNS = 3.1, 8
GAINS = {"median": "median gain", "best": "gain of the best tenth"}
# In the study of remedies color shows the norm placement, as everywhere, and the marker the attention.
ATTENTION = {"softmax": "o", "log-n": "^", "ssmax": "s", "asentmax": "D", "stick-breaking": "P"}


def styles(variants: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Color, marker and dash of each variant, the baseline first."""
    colors = variant_colors(variants)
    return {
        variant: {
            "color": colors[variant],
            "marker": MARKERS[i % len(MARKERS)],
            "linestyle": DASHES[i // len(MARKERS) % len(DASHES)],
            **LINE,
        }
        for i, variant in enumerate(variants)
    }


@our_style()
def draw_comparison(found: Comparison) -> Figure:
    """Top: the median gain and the gain of the best tenth, with intervals. Bottom, per setting: the expected best of k
    draws, and the median gain by length with trained lengths shaded; side by side where there is one setting."""
    settings = found.settings[:MOST_COLUMNS]
    lengths = "new" if any(effect.lengths == "new" for effect in found.effects) else "all"
    rows = len({effect.setting for effect in found.effects}) * len(found.variants)
    width = max(8.0, 0.8 + COLUMN * len(settings))
    height = 1.5 + 0.17 * rows
    panels = 5.6 if len(settings) > 1 else 3.0
    figure = Figure(figsize=(width, height + panels + 0.8), layout="constrained", dpi=150)
    above, below = figure.subfigures(2, 1, height_ratios=[height, panels])  # pyright: ignore[reportGeneralTypeIssues]
    style = styles((found.baseline, *found.variants))
    _gains(above.subplots(1, 2, sharey=True), found, lengths, style)
    grid = below.subplots(2, len(settings), sharey="row") if len(settings) > 1 else below.subplots(1, 2).reshape(2, 1)
    for column, setting in enumerate(settings):
        _best_of(grid[0, column], found, setting, style)
        _by_length(grid[1, column], found, setting, style)
    what = {"new": "mean over longer lengths\nthan trained, if any", "all": "mean over all lengths"}[lengths]
    grid[0, 0].set_ylabel(f"expected best {found.metric.label}\n({what})", fontsize=8)
    grid[1, 0].set_ylabel(f"median gain in {found.metric.label}\n(above 0: better)", fontsize=8)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    columns = max(1, min(len(labels), int(width / 1.9)))
    below.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
    figure.suptitle(_title(found), fontsize=9.5)
    return figure


def _title(found: Comparison) -> str:
    each = sorted({models.models for models in found.models})
    diverged, total = (sum(getattr(models, name) for models in found.models) for name in ("diverged", "models"))
    weights = {"train": "training weights", "bema": "BEMA weights"}.get(found.weights, found.weights)
    fewer = f"; below the first {MOST_COLUMNS} of {len(found.settings)}" if len(found.settings) > MOST_COLUMNS else ""
    on = f" on test {found.test}" if found.test else ""
    return (
        f"Compared with '{found.baseline}'{on}, pair by pair over the same draws: {'-'.join(map(str, each))} models "
        f"per setting and variant, {diverged} of {total:,} diverged\n({weights}, {CHOSEN[found.selection]}; "
        f"95% intervals; gray band: a difference of less than {found.margin:g}\n"
        f"hollow: too few draws for an interval{fewer})"
    )


def _gains(pair: Sequence[Axes], found: Comparison, lengths: str, style: dict[str, dict[str, Any]]) -> None:
    order = [(variant, setting) for setting in (*found.settings, EVERY) for variant in found.variants]
    effects = [effect for effect in found.effects if effect.lengths == lengths]
    effects.sort(key=lambda effect: order.index((effect.variant, effect.setting)))
    names = [
        e.variant if len(found.settings) == 1 else f"{found.labels.get(e.setting, e.setting)}: {e.variant}"
        for e in effects
    ]
    for axes, (name, title) in zip(pair, GAINS.items(), strict=True):
        shown = [(getattr(effect, name).interval, style[effect.variant]) for effect in effects]
        _intervals(axes, shown, found.margin)
        axes.set_title(f"{title} ({lengths} lengths)", fontsize=9)
        axes.set_xlabel(f"gain in {found.metric.label} (right of 0: better than {found.baseline})", fontsize=8)
        axes.tick_params(labelsize=7.5)
    pair[0].set_yticks(range(len(effects)), names)


def _intervals(axes: Axes, shown: Sequence[tuple[Interval, dict[str, Any]]], margin: float) -> None:
    """Gains with their intervals, one per row, and a band of differences below the margin.

    A gain with an open interval is hollow, and the open end is not drawn.
    """
    axes.axvspan(-margin, margin, color=GRAY, alpha=0.6, linewidth=0, zorder=0)
    axes.axvline(0.0, color="black", linewidth=0.8)
    for row, (interval, style) in enumerate(shown):
        ends = np.array([interval.low, interval.high])
        color, closed = style["color"], np.isfinite(ends)
        axes.plot(np.where(closed, ends, interval.estimate), [row, row], color=color, linewidth=1.4)
        inside = color if closed.all() else "white"
        axes.plot(interval.estimate, row, style["marker"], color=color, markerfacecolor=inside, markersize=5)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    plain_panel(axes, "x")


def _best_of(axes: Axes, found: Comparison, setting: str, style: dict[str, dict[str, Any]]) -> None:
    curves = {curve.variant: curve for curve in found.best_of if curve.setting == setting}  # new lengths come last
    for variant in (found.baseline, *found.variants):
        _band(axes, list(curves[variant].k), curves[variant].value, style[variant], variant)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda k, _: f"{k:g}")
    axes.set_xlabel("models tried, k", fontsize=8)
    axes.set_title(found.labels.get(setting, setting), fontsize=9, fontweight="bold")


def _by_length(axes: Axes, found: Comparison, setting: str, style: dict[str, dict[str, Any]]) -> None:
    at = [point for point in found.at_lengths if point.setting == setting]
    lengths = sorted({point.length for point in at})
    for variant in found.variants:
        points = [point for point in at if point.variant == variant]
        _band(axes, [lengths.index(p.length) for p in points], [p.median for p in points], style[variant], variant)
    if trained := len({point.length for point in at if not point.new}):
        shade(axes, trained - 0.5)
    axes.axhline(0.0, color="black", linewidth=0.8)
    step = -(-len(lengths) // 10)
    axes.set_xticks(range(0, len(lengths), step), [f"{length:,}" for length in lengths[::step]], rotation=45)
    axes.set_xlim(-0.6, len(lengths) - 0.4)
    axes.set_xlabel(f"input length ({found.unit}; gray: trained)", fontsize=8)


def _band(axes: Axes, x: list[int], intervals: Sequence[Interval], style: dict[str, Any], label: str) -> None:
    estimate, low, high = (np.array([getattr(i, name) for i in intervals]) for name in ("estimate", "low", "high"))
    known = np.isfinite(low) & np.isfinite(high)
    axes.plot(x, estimate, label=label, **style)
    axes.fill_between(x, low, high, where=known, color=style["color"], alpha=0.15, linewidth=0)  # pyright: ignore[reportArgumentType]
    axes.tick_params(labelsize=7.5)
    plain_panel(axes, "both")


@our_style()
def draw_remedies(comparisons: Sequence[Comparison]) -> Figure:
    """Which remedy helps on which task. Tasks are below each other, and have one column per setting: above, the gain of
    the best tenth, with the line from which it counts as solved; below it, the median of the paired gains. They are
    side by side where a task has one setting."""
    heights = [(1.0 + 0.17 * len(found.variants)) * (2 if len(found.settings) > 1 else 1) for found in comparisons]
    widest = max(len(found.settings) for found in comparisons)
    figure = Figure(figsize=(max(8.3, 1.2 + 2.3 * widest), 1.4 + sum(heights)), layout="constrained", dpi=150)
    parts = figure.subfigures(len(comparisons), 1, height_ratios=heights, squeeze=False)
    for part, found in zip(parts.flat, comparisons, strict=True):
        columns = len(found.settings)
        grid = part.subplots(2 if columns > 1 else 1, max(2, columns), sharey=True).reshape(2, columns)
        for setting, pair in zip(found.settings, grid.T, strict=True):
            for axes, name in zip(pair, ("best", "median"), strict=True):
                _remedies(axes, found, setting, name)
                if name == "best" or columns == 1:
                    axes.set_title(_heading(found, setting), fontsize=9, fontweight="bold")
        grid[0, 0].set_yticks(range(len(found.variants)), found.variants)
    placements = dict.fromkeys(name.split("+")[0] for found in comparisons for name in found.variants)
    _remedies_legend(figure, [*placements])
    models = [m for found in comparisons for m in found.models]
    each, diverged = sorted({m.models for m in models}), sum(m.diverged for m in models)
    figure.suptitle(
        "Which remedy helps on which task: gain over the model without it, paired by draw,\n"
        "on lengths longer than trained (training weights at the best checkpoint; 95% intervals over draws;\n"
        f"{', '.join(map(str, each))} models per variant, {diverged} of {sum(m.models for m in models):,} diverged)",
        fontsize=9.5,
    )
    return figure


def _remedies(axes: Axes, found: Comparison, setting: str, name: str) -> None:
    of = {effect.variant: effect for effect in found.effects if effect.setting == setting}  # new lengths come last
    shown = [(getattr(of[variant], name).interval, look(variant)) for variant in found.variants]
    _intervals(axes, shown, THRESHOLD if name == "best" else found.margin)
    if name == "best":
        models = [m for m in found.models if m.setting == setting]
        perfect = 0.0 if found.metric.lower_is_better else 1.0
        away = next(abs(m.best - perfect) for m in models if m.variant == found.baseline)
        if away > THRESHOLD:
            axes.axvline(away - THRESHOLD, color="black", linewidth=1.1, linestyle="--")
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel(f"{GAINS[name]} in {found.metric.label}\n(right of 0: better than {found.baseline})", fontsize=8)
    axes.tick_params(labelsize=7.5)


def _heading(found: Comparison, setting: str) -> str:
    """The task, by its kind, and what distinguishes the setting."""
    label = found.labels.get(setting, setting)
    return f"{setting.rpartition('-s')[0]}, {label}" if label.startswith("s = ") else label


def look(variant: str) -> dict[str, str]:
    """Color and marker of a remedy.

    >>> look("peri+ssmax+nope")
    {'color': '#009E73', 'marker': 's'}
    """
    placement, *parts = variant.split("+")
    attention = next((part for part in parts if part in ATTENTION), "softmax")
    return {"color": KNOWN[placement], "marker": ATTENTION[attention]}


def _remedies_legend(figure: Figure, placements: Sequence[str]) -> None:
    handles: list[Artist] = [Patch(facecolor=KNOWN[name], label=name) for name in placements]
    for name, marker in ATTENTION.items():
        handles.append(Line2D([], [], color="black", marker=marker, linestyle="", label=name))
    band = f"less than {THRESHOLD:g} (best), {MARGIN:g} (median): no difference"
    solved = f"from about here on the best tenth is within {THRESHOLD:g} of a perfect score"
    handles.append(Patch(facecolor=GRAY, label=band))
    handles.append(Line2D([], [], color="black", linewidth=1.1, linestyle="--", label=solved))
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
