"""Figures 1 and 5: the distribution of TVD over models, by training length and placement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resharpen.analysis.scores import scores
from resharpen.experiments.store import Run
from resharpen.views.violins import COLOURS, finish_panel, legend, split_violin

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_COLUMNS = 4


def draw_set_complement(run: Run, selection: str = "best", lengths: pl.DataFrame | None = None) -> Figure:
    """One panel a placement and vocabulary; in it a split violin for each training length."""
    from matplotlib.figure import Figure

    table = scores(run, selection, lengths)
    panels = [(v, p) for v in sorted(table["v"].unique()) for p in run.experiment.placements]
    columns = min(MOST_COLUMNS, len(run.experiment.placements))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(0.9 + 3.1 * columns, 1.15 + 2.75 * rows), layout="constrained", dpi=150)
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for number, axes in enumerate(grid.flat):
        if number >= len(panels):
            axes.axis("off")
            continue
        v, placement = panels[number]
        name = f"{placement}, v = {v}" if table["v"].n_unique() > 1 else placement
        _panel(axes, table.filter(v=v, placement=placement), name)
        if number % columns == 0:
            axes.set_ylabel("mean TVD over all lengths")
        if number + columns >= len(panels):
            axes.set_xlabel("training length s (tokens)")
    grid[0, 0].set_ylim(-0.01, max(0.55, 1.03 * (table["score"].max() or 0)))  # pyright: ignore[reportOperatorIssue]
    legend(figure)
    figure.suptitle(_title(run, table), fontsize=9.5)
    return figure


def _panel(axes: Axes, rows: pl.DataFrame, name: str) -> None:
    lengths = sorted(rows["train_length"].unique())
    for s in lengths:
        for weights in COLOURS:
            values = rows.filter(train_length=s, weights=weights)["score"].drop_nulls()
            split_violin(axes, s, values.to_numpy(), weights)
    axes.axhline(0.5, color="grey", linewidth=0.8, linestyle=":", zorder=0)
    axes.text(0.99, 0.505, "uniform guess", transform=axes.get_yaxis_transform(), ha="right", va="bottom", fontsize=6.5)
    axes.set_xticks(lengths)
    axes.margins(x=0.03)
    finish_panel(axes, name, rows.filter(weights="train"), "score")


def _title(run: Run, table: pl.DataFrame) -> str:
    experiment = run.experiment
    done, asked = table["model"].n_unique(), experiment.models * len(experiment.settings) * len(experiment.placements)
    unfinished = "" if done == asked else f"; {done:,} of {asked:,} models so far"
    return (
        f"Set Complement: each dot is a model with its own random hyperparameters, at its best checkpoint "
        f"({experiment.steps:,} steps{unfinished})"
    )
