"""A metric by input length: one panel a setting and placement, in it a split violin for each length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from resharpen.experiments.spec import Setting
from resharpen.experiments.store import Run
from resharpen.tasks import Dyck, Language, MaxRetrieval, Task, Tomita
from resharpen.views.violins import COLOURS, finish_panel, legend, split_violin

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

NAMES = {
    "accuracy": "accuracy",
    "entropy": "attention entropy (nats)",
    "largest_weight": "largest attention weight",
    "tvd": "TVD",
}
HIGHER_IS_BETTER = ("accuracy", "largest_weight", "auc")
MANY_LENGTHS = 12
"""With more than so many, panels are wide and stand one above the other."""
WIDE = 9.0
"""Inches from which the title has room in one line."""
MARKS = {
    "99th percentile of training lengths": {"color": "#CC79A7", "linewidth": 2.4, "linestyle": "-"},
    "training cap": {"color": "black", "linewidth": 0.9, "linestyle": "--"},
}
"""Marked length -> its line; they are told apart where both fall together."""


def draw_by_length(
    run: Run,
    settings: Sequence[Setting],
    metric: str,
    title: str,
    selection: str = "best",
    lengths: pl.DataFrame | None = None,
) -> Figure:
    """Every model at every length of the report set, a row of panels for each setting; trained lengths are shaded."""
    import polars as pl
    from matplotlib.figure import Figure

    table = (
        (run.table("lengths") if lengths is None else lengths)
        .filter(pl.col("selection") == selection, pl.col("metric") == metric)
        .join(run.table("models"), on="model")
    )
    placements = [name for name in run.experiment.placements if name in set(table["placement"])]
    settings = [setting for setting in settings if setting.name in set(table["setting"])]
    shown = {setting.name: sorted(table.filter(setting=setting.name)["length"].unique()) for setting in settings}
    many = max(map(len, shown.values())) > MANY_LENGTHS
    rows, columns = (len(placements), len(settings)) if many else (len(settings), len(placements))
    width, height = (6.6, 1.9) if many else (3.3, 3.0 if rows == 1 else 2.3)
    figure = Figure(figsize=(0.9 + width * columns, 0.9 + height * rows), layout="constrained", dpi=150)
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    best = 0.9 if metric in HIGHER_IS_BETTER else 0.1
    for i, setting in enumerate(settings):
        for j, placement in enumerate(placements):
            row, column = (j, i) if many else (i, j)
            axes = grid[row, column]
            of_panel = table.filter(setting=setting.name, placement=placement)
            name = placement if len(settings) == 1 else f"{label(setting.task)}, {placement}"
            _panel(axes, of_panel, shown[setting.name], name, best)
            _background(axes, setting, metric, shown[setting.name])
            if row == rows - 1:
                axes.set_xlabel(f"input length ({_unit(setting.task, metric)})")
            if column == 0 or many:
                axes.set_ylabel(_metric_name(setting.task, metric), fontsize=8.5)
    languages = any(isinstance(setting.task, Language) for setting in settings)
    legend(figure, best, _mark_handles() if languages else ())
    training = f"{run.experiment.steps:,} steps of {run.experiment.batch} sequences"
    between = " " if figure.get_figwidth() > WIDE else "\n"
    figure.suptitle(f"{title}{between}(grey: trained lengths; {training})", fontsize=9.5)
    return figure


def label(task: Task) -> str:
    """The name of a task in a title."""
    if isinstance(task, Dyck):
        return f"Dyck({task.k}, {task.m})"
    if isinstance(task, Tomita):
        return f"Tomita {task.n}"
    return "Maximum Retrieval" if isinstance(task, MaxRetrieval) else task.name


def _panel(axes: Axes, rows: pl.DataFrame, lengths: list[int], name: str, best: float) -> None:
    for position, length in enumerate(lengths):
        for weights in COLOURS:
            values = rows.filter(length=length, weights=weights)["value"].drop_nulls()
            split_violin(axes, position, values.to_numpy(), weights, best)
    axes.set(xlim=(-0.6, len(lengths) - 0.4))
    axes.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths], rotation=45, fontsize=8)
    finish_panel(axes, name, rows.filter(weights="train", length=lengths[0]), "value")


def _background(axes: Axes, setting: Setting, metric: str, lengths: list[int]) -> None:
    """Trained lengths, what a guess would reach, and for a language the marks of its training lengths."""
    trained = sum(length <= setting.train_length for length in lengths)
    axes.axvspan(-0.6, trained - 0.5, color="#DDDDDD", alpha=0.5, linewidth=0, zorder=0)
    guess = 1 / setting.task.vocabulary if metric == "accuracy" else 0.5 if metric == "auc" else None
    if guess is not None:
        axes.axhline(guess, color="grey", linewidth=0.8, zorder=0)
        right = axes.get_yaxis_transform()
        axes.text(1.003, guess, "guess", transform=right, ha="left", va="center", fontsize=6.5, color="grey")
    if isinstance(setting.task, Language):
        marked = (setting.task.length_quantile(0.99, setting.train_length), setting.train_length)
        # A violin of a bin stands in the middle of it, one of a single length at it.
        shift = 0.5 if metric == "tvd" else 1.0
        for style, length in zip(MARKS.values(), marked, strict=True):
            axes.axvline(length / setting.task.bin_width - shift, zorder=1, **style)


def _mark_handles() -> list[Line2D]:
    from matplotlib.lines import Line2D

    return [Line2D([], [], label=what, **style) for what, style in MARKS.items()]


def _metric_name(task: Task, metric: str) -> str:
    if metric == "auc" and isinstance(task, Language):
        return f"ROC AUC of the logit of {task.automaton.tokens[task.marked]}"
    return NAMES.get(metric, metric)


def _unit(task: Task, metric: str) -> str:
    if isinstance(task, MaxRetrieval):
        return "items"
    return "tokens, to the end of a bin" if metric == "tvd" else "tokens"
