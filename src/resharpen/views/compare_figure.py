"""The figure of a comparison: gains by setting, expected best of k draws, and gains by length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from resharpen.analysis.compare import CHOSEN, EVERY, Comparison
from resharpen.analysis.statistics import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette; markers and dashes tell apart what is more than its colors.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5C4B00")
MARKERS, DASHES = "osD^vPX", ("-", "--", ":", "-.")
BASELINE = "#555555"
COLUMN, MOST_COLUMNS = 3.1, 8


def styles(variants: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Color, marker and dash of each variant."""
    return {
        variant: {
            "color": COLORS[i % len(COLORS)],
            "marker": MARKERS[i % len(MARKERS)],
            "linestyle": DASHES[i // len(COLORS) % len(DASHES)],
            "markersize": 4,
            "linewidth": 1.3,
        }
        for i, variant in enumerate(variants)
    }


def draw_comparison(found: Comparison) -> Figure:
    """Above: every median gain and best tenth with its interval. Below, for each setting: the expected best of k draws,
    and the median gain by length; what is trained on is gray."""
    from matplotlib.figure import Figure

    settings = found.settings[:MOST_COLUMNS]
    lengths = "new" if any(effect.lengths == "new" for effect in found.effects) else "all"
    rows = len({effect.setting for effect in found.effects}) * len(found.variants)
    width = max(8.0, 0.8 + COLUMN * len(settings))
    height = 1.5 + 0.17 * rows
    figure = Figure(figsize=(width, height + 6.4), layout="constrained", dpi=150)
    above, below = figure.subfigures(2, 1, height_ratios=[height, 5.6])  # pyright: ignore[reportGeneralTypeIssues]
    style = styles(found.variants)
    _gains(above.subplots(1, 2, sharey=True), found, lengths, style)
    grid = below.subplots(2, len(settings), sharey="row", squeeze=False)
    for column, setting in enumerate(settings):
        _best_of(grid[0, column], found, setting, style)
        _by_length(grid[1, column], found, setting, style)
    what = {"new": "mean over longer lengths than trained, if any", "all": "mean over all lengths"}[lengths]
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
    return (
        f"Against '{found.baseline}', pair by pair over the same draws: {'-'.join(map(str, each))} models per setting "
        f"and variant, {diverged} of {total:,} diverged\n({weights}, {CHOSEN[found.selection]}; 95% intervals; "
        f"gray band: a difference of less than {found.margin:g}\nhollow: too few draws for an interval{fewer})"
    )


def _gains(pair: Sequence[Axes], found: Comparison, lengths: str, style: dict[str, dict[str, Any]]) -> None:
    effects = [effect for effect in found.effects if effect.lengths == lengths]
    order = [(variant, s) for s in (*found.settings, EVERY) for variant in found.variants]
    effects.sort(key=lambda effect: order.index((effect.variant, effect.setting)))
    names = [
        effect.variant if len(found.settings) == 1 else f"{effect.setting}: {effect.variant}" for effect in effects
    ]
    for axes, name, title in zip(pair, ("median", "best"), ("median gain", "gain of the best tenth"), strict=True):
        axes.axvspan(-found.margin, found.margin, color="#DDDDDD", alpha=0.6, linewidth=0, zorder=0)
        axes.axvline(0.0, color="black", linewidth=0.8)
        for i, effect in enumerate(effects):
            interval = getattr(effect, name).interval
            interval_bar(axes, interval, i, style[effect.variant])
        axes.set_title(f"{title} ({lengths} lengths)", fontsize=9)
        axes.set_xlabel(f"gain in {found.metric.label} (right of 0: better than {found.baseline})", fontsize=8)
        axes.tick_params(labelsize=7.5)
        axes.grid(axis="x", linewidth=0.4, alpha=0.5)
        axes.spines[["top", "right"]].set_visible(False)
    pair[0].set_yticks(range(len(effects)), names)
    pair[0].set_ylim(len(effects) - 0.5, -0.5)


def interval_bar(axes: Axes, interval: Interval, at: float, style: dict[str, Any]) -> None:
    """A gain with its interval; an end that the draws leave open is left out."""
    low, high = (end if np.isfinite(end) else interval.estimate for end in (interval.low, interval.high))
    axes.plot([low, high], [at, at], color=style["color"], linewidth=1.4)
    inside = style["color"] if np.isfinite([interval.low, interval.high]).all() else "white"
    axes.plot(interval.estimate, at, style["marker"], color=style["color"], markerfacecolor=inside, markersize=5)


def _best_of(axes: Axes, found: Comparison, setting: str, style: dict[str, dict[str, Any]]) -> None:
    plain = {"color": BASELINE, "marker": ".", "linestyle": "-", "markersize": 4, "linewidth": 1.3}
    curves = {curve.variant: curve for curve in found.best_of if curve.setting == setting}  # new lengths come last
    for variant in (found.baseline, *found.variants):
        _band(axes, list(curves[variant].k), curves[variant].value, style.get(variant, plain), variant)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda k, _: f"{k:g}")
    axes.set_xlabel("models tried, k", fontsize=8)
    axes.set_title(setting, fontsize=9, fontweight="bold")
    _finish(axes)


def _by_length(axes: Axes, found: Comparison, setting: str, style: dict[str, dict[str, Any]]) -> None:
    at = [point for point in found.at_lengths if point.setting == setting]
    lengths = sorted({point.length for point in at})
    place = {length: i for i, length in enumerate(lengths)}
    for variant in found.variants:
        points = [point for point in at if point.variant == variant]
        _band(axes, [place[p.length] for p in points], [p.median for p in points], style[variant], variant)
    trained = len({point.length for point in at if not point.new})
    if trained:
        axes.axvspan(-0.6, trained - 0.5, color="#DDDDDD", alpha=0.5, linewidth=0, zorder=0)
    axes.axhline(0.0, color="black", linewidth=0.8)
    step = -(-len(lengths) // 10)
    axes.set_xticks(range(0, len(lengths), step), [f"{length:,}" for length in lengths[::step]], rotation=45)
    axes.set_xlim(-0.6, len(lengths) - 0.4)
    axes.set_xlabel(f"input length ({found.unit}; gray: trained)", fontsize=8)
    _finish(axes)


def _band(axes: Axes, x: list[int], intervals: Sequence[Interval], style: dict[str, Any], label: str) -> None:
    estimate = np.array([interval.estimate for interval in intervals])
    low, high = (np.array([getattr(i, end) for i in intervals]) for end in ("low", "high"))
    known = np.isfinite(low) & np.isfinite(high)
    axes.plot(x, estimate, label=label, **style)
    axes.fill_between(x, low, high, where=known, color=style["color"], alpha=0.15, linewidth=0)  # pyright: ignore[reportArgumentType]


def _finish(axes: Axes) -> None:
    axes.tick_params(labelsize=7.5)
    axes.grid(linewidth=0.4, alpha=0.5)
    axes.spines[["top", "right"]].set_visible(False)
