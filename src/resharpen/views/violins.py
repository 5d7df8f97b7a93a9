"""Split violins: the left half shows training weights, the right half BEMA, and every model is a dot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from resharpen.analysis.statistics import quantile
from resharpen.experiments.keeping.opening import RunOrReference
from resharpen.tasks import Metric

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

# Okabe and Ito's palette: distinguishable for the color-blind, and by lightness in gray print.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
GRAY = "#DDDDDD"
COLORS = {"train": BLUE, "bema": ORANGE}
DARK = {"train": "#00395B", "bema": "#7A5000"}
LABELS = {"train": "training weights (left)", "bema": "BEMA (right)"}
ENTRY_INCHES = 2.5
"""Width of an entry of the legend."""
MANY = 1_000
"""With more dots in one half than this, a vector file has them as a bitmap."""
POINTS = 100
"""Points at which a density is computed, evenly spaced from the smallest value to the largest."""
LONG_TICK, SHORT_TICK = 0.40, 0.22


@dataclass(frozen=True, eq=False)
class Half:
    """One half of a violin, as the figures and the report draw it."""

    values: NDArray[np.float64]
    stats: dict[str, Any]
    """As `Axes.violin` takes it: `coords`, and the density there, `vals`."""
    median: float
    best: float


def half_violin(values: NDArray[np.float64], metric: Metric) -> Half | None:
    """A Gaussian kernel density with Scott's bandwidth, the median, and the best quantile; None without finite values.

    A model without a value, nan, is not part of the density and ranks worst in both quantiles, as in claims.
    """
    from matplotlib.cbook import violin_stats
    from matplotlib.mlab import GaussianKDE

    def density(x: NDArray, coords: NDArray) -> NDArray:
        return (x[0] == coords).astype(float) if np.ptp(x) == 0 else GaussianKDE(x).evaluate(coords)

    known, ranked = (x[np.isfinite(x)] for x in (values, np.where(np.isnan(values), metric.worst, values)))
    if not len(known):
        return None
    (stats,) = violin_stats(known, density, POINTS)
    return Half(known, stats, quantile(ranked, 0.5), quantile(ranked, metric.best_quantile))


def split_violins(
    axes: Axes, rows: pl.DataFrame, positions: Mapping[int, float], column: str, value: str, metric: Metric
) -> None:
    """A violin of the values at each position; `positions` maps an entry of the column to its x."""
    for key, x in positions.items():
        for weights in COLORS:
            split_violin(axes, x, rows.filter(weights=weights, **{column: key})[value].to_numpy(), weights, metric)


def split_violin(axes: Axes, x: float, values: NDArray[np.float64], weights: str, metric: Metric) -> None:
    """One half of a violin at x: density, one dot per model, ticks at the median and the best quantile."""
    half = half_violin(values, metric)
    if half is None:
        return
    values, color, direction = half.values, COLORS[weights], -1 if weights == "train" else 1
    side = "low" if weights == "train" else "high"
    (body,) = axes.violin([half.stats], [x], widths=0.86, showextrema=False, side=side)["bodies"]  # pyright: ignore[reportGeneralTypeIssues]
    body.set(facecolor=color, alpha=0.45, linewidth=0)
    # Dots are spread by rank rather than at random, so that a run always gives the same picture.
    spread = 0.06 + 0.24 * np.modf(np.arange(len(values)) * 0.618034)[0]  # as in page/violins.js
    look = {"color": DARK[weights], "markersize": 2.4, "alpha": 0.8, "markeredgewidth": 0}
    axes.plot(x + direction * spread, values, ".", rasterized=len(values) > MANY, **look)
    for at, width in ((half.median, LONG_TICK), (half.best, SHORT_TICK)):
        axes.plot([x, x + direction * width], [at, at], color="black", linewidth=0.9, solid_capstyle="butt")


def finish_panel(axes: Axes, name: str, models: pl.DataFrame, value: str) -> None:
    """Name of a panel, and the numbers of models and of diverged ones, from one row per model and violin."""
    each = sorted(models.group_by("train_length").len()["len"].unique())
    diverged, missing = models["diverged_at"].is_not_null().sum(), models[value].is_null().sum()
    text = f"{'-'.join(map(str, each))} models per violin, {diverged} of {len(models)} diverged"
    text += f", {missing} not shown" if missing else ""
    text = text if each else "no models yet"
    axes.set_title(name, fontsize=10, fontweight="bold", pad=16)
    axes.text(0.5, 1.02, text, transform=axes.transAxes, ha="center", va="bottom", fontsize=7.5)
    plain_panel(axes, "y")


def plain_panel(axes: Axes, grid: Literal["x", "y", "both"]) -> None:
    axes.grid(axis=grid, linewidth=0.4, alpha=0.5)
    axes.spines[["top", "right"]].set_visible(False)


def shade(axes: Axes, end: float, start: float = -0.6) -> None:
    """Mark the trained lengths."""
    axes.axvspan(start, end, color=GRAY, alpha=0.5, linewidth=0, zorder=0)


def so_far(run: RunOrReference) -> str:
    """The part of a figure's title that says that a run is incomplete."""
    experiment, done = run.experiment, run.table("models").height
    asked = experiment.models * len(experiment.settings) * len(experiment.variants)
    return "" if done == asked else f"; {done:,} of {asked:,} models so far"


def legend(figure: Figure, best: float = 0.1, further: Sequence[Line2D] = ()) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    halves = [Patch(facecolor=COLORS[w], alpha=0.6, label=LABELS[w]) for w in COLORS]
    ticks = Line2D([], [], color="black", linewidth=0.9, label=f"long tick: median, short tick: {best:.0%} quantile")
    handles = [*halves, ticks, *further]
    columns = max(1, min(len(handles), int(figure.get_figwidth() / ENTRY_INCHES)))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
