"""Split violins: the left half shows training weights, the right half BEMA, and every model is a dot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from resharpen.analysis.statistics import quantile
from resharpen.experiments.keeping.opening import RunOrReference
from resharpen.lazy import pl
from resharpen.tasks import Metric
from resharpen.views.palette import BEMA

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

BLACK, GRAY = "#000000", "#DDDDDD"
SMALLEST = 7.0
"""Smallest font size of a figure, in points."""
HIDDEN_SHARE, HIDING_GAIN = 0.02, 0.2
"""At most this share of values is cut off at either end, and only if they would take this share of the axis."""
CHARACTERS_PER_INCH = 13
"""Length of a line of a title."""
ENTRY_INCHES = 2.5
"""Width of an entry of the legend."""
MOST_COLUMNS, NARROWEST = 4, 1.6
"""Of a grid of panels; inches."""
NAME_SIZE, BOLD_WIDTH = 10.0, 0.72
"""Points of the name of a panel where there is room; mean width of a bold letter relative to its height."""
LABEL_SIZE = 8.5
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


@dataclass(frozen=True)
class Look:
    """Options of a figure: its width in inches, by default wide enough for a screen, and whether it has a title."""

    width: float | None = None
    title: bool = True

    def columns(self, panels: int) -> int:
        """Of a grid of so many panels, whose rows are filled evenly.

        >>> Look().columns(7), Look().columns(6), Look(width=3.3).columns(4)
        (4, 3, 2)
        """
        most = MOST_COLUMNS if self.width is None else max(1, min(MOST_COLUMNS, int(self.width / NARROWEST)))
        return -(-panels // -(-panels // most))

    def figure(self, natural: tuple[float, float], rows: int) -> Figure:
        """A figure of this width, with approximately the proportions of the natural size."""
        from matplotlib.figure import Figure

        width, height = natural
        if self.width is not None:
            most = height / rows
            height = rows * min(most, max(1.3, most * (self.width / width) ** 0.6)) + 0.2
            width = self.width
        return Figure(figsize=(width, height), layout="constrained", dpi=150)

    def entitle(self, figure: Figure, *pieces: str) -> None:
        """Add a title, with line breaks between pieces if it does not fit."""
        if self.title:
            lines, most = [""], CHARACTERS_PER_INCH * figure.get_figwidth()
            for piece in pieces:
                if lines[-1] and len(lines[-1]) + len(piece) > most:
                    lines.append(piece)
                else:
                    lines[-1] = f"{lines[-1]} {piece}".strip()
            figure.suptitle("\n".join(lines), fontsize=9.5)


def darker(color: str, factor: float = 0.55) -> str:
    """>>> darker("#0072B2")
    '#003e61'
    """
    return "#" + "".join(f"{int(int(color[i : i + 2], 16) * factor):02x}" for i in (1, 3, 5))


def split_violins(
    axes: Axes,
    rows: pl.DataFrame,
    positions: Mapping[int, float],
    column: str,
    value: str,
    metric: Metric,
    color: str,
) -> None:
    """A violin of the values at each position; `positions` maps an entry of the column to its x."""
    for weights, of_weights in (("train", color), ("bema", BEMA)):
        of = rows.filter(weights=weights)
        found = {x: half_violin(of.filter(**{column: key})[value].to_numpy(), metric) for key, x in positions.items()}
        draw_halves(axes, {x: half for x, half in found.items() if half}, weights, of_weights)


def draw_halves(axes: Axes, halves: Mapping[float, Half], weights: str, color: str) -> None:
    """Halves of violins by their x: density, one dot per model, ticks at the median and the best quantile."""
    direction, side = (-1, "low") if weights == "train" else (1, "high")
    if not halves:
        return
    stats = [half.stats for half in halves.values()]
    for body in axes.violin(stats, list(halves), widths=0.86, showextrema=False, side=side)["bodies"]:  # pyright: ignore[reportGeneralTypeIssues]
        body.set(facecolor=color, alpha=0.45, linewidth=0)
    # dots are spread by rank instead of at random, so that a run always gives the same figure
    spread = [
        x + direction * (0.06 + 0.24 * np.modf(np.arange(len(half.values)) * 0.618034)[0])  # as in page/violins.js
        for x, half in halves.items()
    ]
    look = {"color": darker(color), "markersize": 2.4, "alpha": 0.8, "markeredgewidth": 0}
    # all at once: in an SVG each rasterized artist is drawn on a canvas of the size of the figure
    dots = np.concatenate([half.values for half in halves.values()])
    axes.plot(np.concatenate(spread), dots, ".", rasterized=True, **look)
    for x, half in halves.items():
        for at, width in ((half.median, LONG_TICK), (half.best, SHORT_TICK)):
            axes.plot([x, x + direction * width], [at, at], color="black", linewidth=0.9, solid_capstyle="butt")


def name_size(names: Sequence[str], inches: float) -> float:
    """Points at which the longest name of a panel of this width fits, if that is not too small to read."""
    return min(NAME_SIZE, max(SMALLEST, 72 * inches / (BOLD_WIDTH * max(map(len, names)))))


def finish_panel(axes: Axes, name: str, size: float, empty: bool) -> None:
    """Add the name of a panel, and a note if it is empty."""
    axes.set_title(name, fontsize=size, fontweight="bold")
    if empty:
        axes.text(0.5, 0.5, "no models yet", transform=axes.transAxes, ha="center", fontsize=8)
    axes.tick_params(labelsize=8)
    plain_panel(axes, "y")


def label_below(bottom: NDArray[Any], text: str) -> None:
    """One label for the x axes of a row of panels, in its middle: of its own each would be wider than a panel."""
    shown = [axes for axes in bottom if axes.axison]
    shown[(len(shown) - 1) // 2].set_xlabel(text, fontsize=LABEL_SIZE, x=0.5 if len(shown) % 2 else 1.0)


def label_left(column: NDArray[Any], text: str) -> None:
    """One label for the y axes of a column of panels, in its middle."""
    column[len(column) // 2].set_ylabel(text, fontsize=LABEL_SIZE, y=0.5 if len(column) % 2 else 1.15)


def draw_guess(axes: Axes, guess: float | None, name: str) -> None:
    """A line at the score of a guess, named on the right, outside of the panel."""
    if guess is not None:
        axes.axhline(guess, color="gray", linewidth=0.8, linestyle=":", zorder=0)
        at = {"transform": axes.get_yaxis_transform(), "ha": "left", "va": "center"}
        axes.text(1.01, guess, name, fontsize=SMALLEST, **at)


def counted(models: pl.DataFrame, value: str) -> str:
    """The number of models per violin, and how many diverged, from one row per model and violin."""
    each = sorted(models.group_by("setting", "variant").len()["len"].unique())
    diverged, missing = models["diverged_at"].is_not_null().sum(), models[value].is_null().sum()
    text = f"{'-'.join(map(str, dict.fromkeys((each[0], each[-1]))))} models per violin"
    text += f", {diverged:,} of {len(models):,} diverged"
    return text + (f", {missing} not shown" if missing else "")


def fit_values(panels: Sequence[Axes], low: float | None = None) -> None:
    """Set limits of the shared y axis that include all but a few outliers, which are counted in their panel, and start
    at least at `low`, if given."""
    values = [
        np.concatenate([np.asarray(line.get_ydata(), float) for line in axes.lines if line.get_marker() == "."] or [[]])
        for axes in panels
    ]
    every = np.sort(np.concatenate(values))
    if not len(every):
        return
    bottom, top = (sign * _end(sign * every[::sign]) for sign in (1, -1))
    margin = 0.03 * max(top - bottom, 1e-3)
    limits = (min(bottom, low) if low is not None else bottom) - margin, top + margin
    panels[0].set_ylim(*limits)  # of all: the axis is shared
    behind = {"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1}
    at: dict[str, Any] = {"fontsize": SMALLEST, "ha": "center", "bbox": behind}
    for axes, of_panel in zip(panels, values, strict=True):
        if below := int((of_panel < limits[0]).sum()):
            axes.text(0.5, 0.04, f"{dots(below)} below", transform=axes.transAxes, va="bottom", **at)
        if above := int((of_panel > limits[1]).sum()):
            axes.text(0.5, 0.99, f"{dots(above)} above", transform=axes.transAxes, va="top", **at)


def dots(count: int) -> str:
    return f"{count} dot{'' if count == 1 else 's'}"


def _end(ascending: NDArray[np.float64]) -> float:
    """The start of an axis: the smallest value, or above a few outliers that would take a fifth of it or more.

    >>> values = np.linspace(0.9, 1.0, 400)
    >>> _end(values), _end(np.array([0.1, 0.5, *values]))
    (0.9, 0.9)
    """
    first, most = 0, int(HIDDEN_SHARE * len(ascending))
    while True:
        here, spread = ascending[first], ascending[-1] - ascending[first]
        further = [i for i in range(first + 1, most + 1) if ascending[i] - here > HIDING_GAIN * spread]
        if not further:
            return float(here)
        first = further[0]


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


def legend(figure: Figure, colors: Sequence[str], best: float = 0.1, further: Sequence[Line2D] = ()) -> None:
    """Halves of a violin, of which the left has the colors of variants; ticks; further lines."""
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    left = tuple(Patch(facecolor=color, alpha=0.6) for color in dict.fromkeys(colors))
    ticks = Line2D([], [], color="black", linewidth=0.9)
    entries: list[tuple[Any, str]] = [
        (left, "left, in color: training weights"),
        (Patch(facecolor=BEMA, alpha=0.6), "right, gray: BEMA weights"),
        (ticks, f"long tick: median, short tick: {best:.0%} quantile"),
        *((line, str(line.get_label())) for line in further),
    ]
    columns = max(1, min(len(entries), int(figure.get_figwidth() / ENTRY_INCHES)))
    handles, labels = zip(*entries, strict=True)
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=8,
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0)},
    )
