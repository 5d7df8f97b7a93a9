"""A metric by input length: one panel per setting and variant, in it a split violin for each length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from resharpen.analysis.scores import scored_lengths
from resharpen.experiments.keeping.opening import RunOrReference
from resharpen.experiments.specs.spec import Setting
from resharpen.tasks import Metric
from resharpen.views.violins import COLORS, finish_panel, legend, so_far, split_violin

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

MANY_LENGTHS = 12
"""With more than so many, panels are wide and stand one above the other."""
AN_INCH = 13
"""Characters of a title: what is longer than the figure is wide takes two lines."""
MARK_STYLES = (
    {"color": "#CC79A7", "linewidth": 2.4, "linestyle": "-"},
    {"color": "black", "linewidth": 0.9, "linestyle": "--"},
)
"""Of the lengths that a task marks, in turn; they are told apart where two fall together."""


def draw_by_length(
    run: RunOrReference,
    settings: Sequence[Setting],
    metric: str,
    title: str,
    selection: str = "best",
    lengths: pl.DataFrame | None = None,
) -> Figure:
    """Every model at every length of the report set, a row of panels for each setting; trained lengths are shaded."""
    import polars as pl
    from matplotlib.figure import Figure

    table = scored_lengths(run, selection, lengths).filter(pl.col("metric") == metric)
    variants = [name for name in run.experiment.variants if name in set(table["variant"])]
    settings = [setting for setting in settings if setting.name in set(table["setting"])]
    shown = {setting.name: sorted(table.filter(setting=setting.name)["length"].unique()) for setting in settings}
    many = max(map(len, shown.values())) > MANY_LENGTHS
    rows, columns = (len(variants), len(settings)) if many else (len(settings), len(variants))
    width, height = (6.6, 1.9) if many else (3.3, 3.0 if rows == 1 else 2.3)
    figure = Figure(figsize=(0.9 + width * columns, 0.9 + height * rows), layout="constrained", dpi=150)
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for i, setting in enumerate(settings):
        described = setting.task.metrics[metric]
        for j, variant in enumerate(variants):
            row, column = (j, i) if many else (i, j)
            axes = grid[row, column]
            of_panel = table.filter(setting=setting.name, variant=variant)
            name = variant if len(settings) == 1 else f"{setting.task.title}, {variant}"
            _panel(axes, of_panel, shown[setting.name], name, described)
            _background(axes, setting, described, shown[setting.name])
            if row == rows - 1:
                end = ", to the end of a bin" if described.bin else ""
                axes.set_xlabel(f"input length ({setting.task.unit}{end})")
            if column == 0 or many:
                axes.set_ylabel(described.label, fontsize=8.5)
    legend(figure, settings[0].task.metrics[metric].best_quantile, _mark_handles(settings[0]))
    training = f"{run.experiment.steps:,} steps of {run.experiment.batch} sequences{so_far(run)}"
    least, most = (int(count) for count in (table["count"].min(), table["count"].max()))  # pyright: ignore[reportArgumentType]
    behind = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    details = f"(gray: trained lengths; {training}; {behind} {settings[0].task.scored} behind a dot)"
    fits = len(title) + len(details) < AN_INCH * figure.get_figwidth()
    figure.suptitle((" " if fits else "\n").join((title, details)), fontsize=9.5)
    return figure


def _panel(axes: Axes, rows: pl.DataFrame, lengths: list[int], name: str, metric: Metric) -> None:
    for position, length in enumerate(lengths):
        for weights in COLORS:
            values = rows.filter(length=length, weights=weights)["value"].to_numpy()
            split_violin(axes, position, values, weights, metric)
    axes.set(xlim=(-0.6, len(lengths) - 0.4))
    axes.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths], rotation=45, fontsize=8)
    finish_panel(axes, name, rows.filter(weights="train", length=lengths[0]), "value")


def _background(axes: Axes, setting: Setting, metric: Metric, lengths: list[int]) -> None:
    """Trained lengths, what a guess would reach, and the lengths that the task marks."""
    trained = sum(length <= setting.train_length for length in lengths)
    axes.axvspan(-0.6, trained - 0.5, color="#DDDDDD", alpha=0.5, linewidth=0, zorder=0)
    if metric.guess is not None:
        axes.axhline(metric.guess, color="gray", linewidth=0.8, zorder=0)
        right = axes.get_yaxis_transform()
        axes.text(1.003, metric.guess, "guess", transform=right, ha="left", va="center", fontsize=6.5, color="gray")
    # A violin of a bin stands for the middle of it, one of a single length for that.
    centers = np.array(lengths) - (metric.bin or 0) / 2
    for style, length in zip(MARK_STYLES, setting.task.marks(setting.train_length).values(), strict=False):
        axes.axvline(float(np.interp(length, centers, range(len(lengths)))), zorder=1, **style)


def _mark_handles(setting: Setting) -> list[Line2D]:
    from matplotlib.lines import Line2D

    marks = setting.task.marks(setting.train_length)
    return [Line2D([], [], label=what, **style) for what, style in zip(marks, MARK_STYLES, strict=False)]
