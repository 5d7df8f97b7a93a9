"""Figures 1 and 5: the distribution of TVD over models, by training length and placement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resharpen.analysis.scores import scores
from resharpen.experiments.store import Run
from resharpen.views.violins import COLOURS, LABELS, split_violin

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_COLUMNS = 4


def draw(run: Run, selection: str = "best") -> Figure:
    """One panel a placement and vocabulary; in it a split violin for each training length."""
    from matplotlib.figure import Figure

    table = scores(run, selection)
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
        _panel(axes, table.filter(v=v, placement=placement), v, placement, vocabularies=table["v"].n_unique())
        if number % columns == 0:
            axes.set_ylabel("mean TVD over all lengths")
        if number + columns >= len(panels):
            axes.set_xlabel("training length s (tokens)")
    _legend(figure)
    figure.suptitle(_title(run, table), fontsize=9.5)
    return figure


def _panel(axes: Axes, rows: pl.DataFrame, v: int, placement: str, vocabularies: int) -> None:
    lengths = sorted(rows["train_length"].unique())
    for s in lengths:
        for weights in COLOURS:
            split_violin(
                axes, s, rows.filter(train_length=s, weights=weights)["score"].drop_nulls().to_numpy(), weights
            )
    axes.axhline(0.5, color="grey", linewidth=0.8, linestyle=":", zorder=0)
    if lengths:
        axes.text(max(lengths) + 0.5, 0.505, "uniform guess", ha="right", va="bottom", fontsize=6.5, color="grey")
    axes.set(ylim=(-0.01, 0.55), xlim=(min(lengths) - 0.6, max(lengths) + 0.6), xticks=lengths)
    axes.grid(axis="y", linewidth=0.4, alpha=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    name = f"{placement}, v = {v}" if vocabularies > 1 else placement
    axes.set_title(name, fontsize=10, fontweight="bold", pad=16)
    axes.text(0.5, 1.02, _counts(rows), transform=axes.transAxes, ha="center", va="bottom", fontsize=7.5)


def _counts(rows: pl.DataFrame) -> str:
    """How many models a violin shows, and how many diverged; a diverged one with no checkpoint is not drawn."""
    one = rows.filter(weights="train")
    each = sorted(one.group_by("train_length").len()["len"].unique())
    diverged = one["diverged_at"].is_not_null().sum()
    missing = one["score"].is_null().sum()
    text = f"{'-'.join(map(str, each))} models a violin, {diverged} of {len(one)} diverged"
    return text + (f", {missing} not shown" if missing else "")


def _title(run: Run, table: pl.DataFrame) -> str:
    experiment = run.experiment
    done, asked = table["model"].n_unique(), experiment.models * len(experiment.settings) * len(experiment.placements)
    unfinished = "" if done == asked else f"; {done:,} of {asked:,} models so far"
    return (
        f"Set Complement: each dot is a model with its own random hyperparameters, at its best checkpoint "
        f"({experiment.steps:,} steps{unfinished})"
    )


def _legend(figure: Figure) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    halves = [Patch(facecolor=COLOURS[w], alpha=0.6, label=LABELS[w]) for w in COLOURS]
    ticks = Line2D([], [], color="black", linewidth=0.9, label="long tick: median, short tick: 10% quantile")
    figure.legend(handles=[*halves, ticks], loc="outside lower center", ncols=3, frameon=False, fontsize=8)
