"""A score over all lengths by training length: one panel per variant and task; figures 1 and 5 are such."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resharpen.analysis.scores import scores
from resharpen.experiments.keeping.opening import RunOrReference
from resharpen.tasks import Metric
from resharpen.views.violins import COLORS, finish_panel, legend, so_far, split_violin

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_COLUMNS = 4


def draw_by_train_length(
    run: RunOrReference,
    caption: str,
    selection: str = "best",
    lengths: pl.DataFrame | None = None,
    shown: str | None = None,
) -> Figure:
    """One panel per variant and task; in it a split violin for each training length."""
    from matplotlib.figure import Figure

    table = scores(run, selection, lengths, shown)
    there = set(table["setting"])
    tasks = list(dict.fromkeys(setting.task for setting in run.experiment.settings if setting.name in there))
    variants = [name for name in run.experiment.variants if name in set(table["variant"])]
    panels = [(task, variant) for task in tasks for variant in variants]
    columns = min(MOST_COLUMNS, len(variants))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(0.9 + 3.1 * columns, 1.15 + 2.75 * rows), layout="constrained", dpi=150)
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    metric = tasks[0].metrics[shown or tasks[0].metric]
    for number, axes in enumerate(grid.flat):
        if number >= len(panels):
            axes.axis("off")
            continue
        task, variant = panels[number]
        name = f"{variant}, {task.title}" if len(tasks) > 1 else variant
        settings = [setting.name for setting in run.experiment.settings if setting.task == task]
        _panel(axes, table.filter(table["setting"].is_in(settings), variant=variant), name, metric)
        if number % columns == 0:
            axes.set_ylabel(f"mean {metric.label} over all lengths")
        if number + columns >= len(panels):
            axes.set_xlabel(f"training length s ({task.unit})")
    if metric.lower_is_better:
        grid[0, 0].set_ylim(-0.01, max(0.55, *(1.03 * axes.dataLim.ymax for axes in grid.flat if axes.lines)))
    legend(figure, metric.best_quantile)
    names = tasks[0].title if len(tasks) == 1 else tasks[0].title.split(",")[0]
    figure.suptitle(f"{names}: {caption} ({run.experiment.steps:,} steps{so_far(run)})", fontsize=9.5)
    return figure


def _panel(axes: Axes, rows: pl.DataFrame, name: str, metric: Metric) -> None:
    lengths = sorted(rows["train_length"].unique())
    for s in lengths:
        for weights in COLORS:
            values = rows.filter(train_length=s, weights=weights)["score"].to_numpy()
            split_violin(axes, s, values, weights, metric)
    if metric.guess is not None:
        axes.axhline(metric.guess, color="gray", linewidth=0.8, linestyle=":", zorder=0)
        right = axes.get_yaxis_transform()
        axes.text(0.99, metric.guess + 0.005, "uniform guess", transform=right, ha="right", va="bottom", fontsize=6.5)
    axes.set_xticks(lengths)
    axes.margins(x=0.03)
    finish_panel(axes, name, rows.filter(weights="train"), "score")
