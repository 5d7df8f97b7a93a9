"""The figures of a run: split violins by input length, or by training length."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

import numpy as np

from resharpen.analysis.scores import check_reported, reported_metrics, scored_lengths, scores, task_of
from resharpen.errors import unknown
from resharpen.experiments.keeping.opening import RunOrReference
from resharpen.experiments.specs.spec import Setting
from resharpen.state import SELECTIONS
from resharpen.tasks import Metric
from resharpen.views.violins import PURPLE, finish_panel, legend, shade, so_far, split_violins

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CHECKPOINTS = {
    "best": "at its best checkpoint",
    "best-trained": "at its best checkpoint as judged on trained lengths",
    "last": "at its last checkpoint",
}
MOST_COLUMNS = 4
MANY_LENGTHS = 12
"""With more lengths than this, panels are wide and stacked."""
CHARACTERS_PER_INCH = 13
"""Of a title; a longer one is broken into two lines."""
MARK_STYLES = (
    {"color": PURPLE, "linewidth": 2.4, "linestyle": "-"},
    {"color": "black", "linewidth": 0.9, "linestyle": "--"},
)
"""Of the lengths that a task marks, in order; both are visible where they coincide."""


class Figures(dict[str, "Figure"]):
    """Figures by name, which a notebook displays."""

    def _repr_html_(self) -> str:
        return "".join(f"<img src='data:image/png;base64,{_png(figure)}' width='100%'>" for figure in self.values())


def _png(figure: Figure) -> str:
    data = io.BytesIO()
    figure.savefig(data, format="png")
    return base64.b64encode(data.getvalue()).decode()


def draw_figures(
    run: RunOrReference,
    selection: str = "best",
    read_with: str = "",
    lengths: pl.DataFrame | None = None,
    metric: str | None = None,
) -> Figures:
    """`figure`, of the task's first metric, and one figure for each further metric that is drawn by default; or only a
    given metric.

    `lengths` replaces the run's own table of that name: the same models, read with another attention.
    """
    if selection not in SELECTIONS:
        raise unknown("selection", selection, SELECTIONS)
    task, settings = task_of(run), run.experiment.settings
    read = f", read with {read_with}" if read_with else ""
    caption = f"each dot is a model with its own random hyperparameters, {CHECKPOINTS[selection]}{read}"
    reported, first = reported_metrics(run, lengths), next(iter(task.metrics))
    if metric is not None:
        check_reported(run, metric, lengths)
    there = set(run.table("models")["setting"])
    names = list(dict.fromkeys(setting.task.title for setting in settings if setting.name in there))
    title = f"{', '.join(names) if len(names) < 3 else f'{len(names)} tasks'}: {caption}"
    figures = Figures()
    for shown in task.metrics if metric is None else [metric]:
        name = "figure" if shown == first else shown.replace("_", "-")
        if task.shown_by == "train_length" and (shown == first or metric):
            figures[name] = _by_train_length(run, scores(run, selection, lengths, shown), caption, shown)
        elif shown in reported and (shown == first or metric or task.metrics[shown].drawn):
            figures[name] = _by_length(run, scored_lengths(run, selection, lengths).filter(metric=shown), title)
    return figures


def _by_train_length(run: RunOrReference, table: pl.DataFrame, caption: str, shown: str) -> Figure:
    """The score over all lengths: one panel per task and variant, one violin per training length."""
    from matplotlib.figure import Figure

    there = set(table["setting"])
    tasks = list(dict.fromkeys(setting.task for setting in run.experiment.settings if setting.name in there))
    variants = [name for name in run.experiment.variants if name in set(table["variant"])]
    panels = [(task, variant) for task in tasks for variant in variants]
    columns = min(MOST_COLUMNS, len(variants))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(0.9 + 3.1 * columns, 1.15 + 2.75 * rows), layout="constrained", dpi=150)
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    metric = tasks[0].metrics[shown]
    for axes in grid.flat[len(panels) :]:
        axes.axis("off")
    for number, (axes, (task, variant)) in enumerate(zip(grid.flat, panels, strict=False)):
        settings = [setting.name for setting in run.experiment.settings if setting.task == task]
        of_panel = table.filter(table["setting"].is_in(settings), variant=variant)
        lengths = sorted(of_panel["train_length"].unique())
        split_violins(axes, of_panel, {s: s for s in lengths}, "train_length", "score", metric)
        if metric.guess is not None:
            axes.axhline(metric.guess, color="gray", linewidth=0.8, linestyle=":", zorder=0)
            at = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": "bottom"}
            axes.text(0.99, metric.guess + 0.005, "uniform guess", fontsize=6.5, **at)
        axes.set_xticks(lengths)
        axes.margins(x=0.03)
        name = f"{variant}, {task.title}" if len(tasks) > 1 else variant
        finish_panel(axes, name, of_panel.filter(weights="train"), "score")
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


def _by_length(run: RunOrReference, table: pl.DataFrame, title: str) -> Figure:
    """A metric by length: one panel per setting and variant, one violin per length; trained lengths are shaded."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    metric = table["metric"][0]
    variants = [name for name in run.experiment.variants if name in set(table["variant"])]
    settings = [setting for setting in run.experiment.settings if setting.name in set(table["setting"])]
    shown = {setting.name: sorted(table.filter(setting=setting.name)["length"].unique()) for setting in settings}
    many = max(map(len, shown.values())) > MANY_LENGTHS
    rows, columns = (len(variants), len(settings)) if many else (len(settings), len(variants))
    width, height = (6.6, 1.9) if many else (3.3, 3.0 if rows == 1 else 2.3)
    figure = Figure(figsize=(0.9 + width * columns, 0.9 + height * rows), layout="constrained", dpi=150)
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for i, setting in enumerate(settings):
        described, lengths = setting.task.metrics[metric], shown[setting.name]
        for j, variant in enumerate(variants):
            row, column = (j, i) if many else (i, j)
            axes = grid[row, column]
            of_panel = table.filter(setting=setting.name, variant=variant)
            split_violins(axes, of_panel, {n: x for x, n in enumerate(lengths)}, "length", "value", described)
            axes.set_xlim(-0.6, len(lengths) - 0.4)
            axes.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths], rotation=45, fontsize=8)
            name = variant if len(settings) == 1 else f"{setting.task.title}, {variant}"
            finish_panel(axes, name, of_panel.filter(weights="train", length=lengths[0]), "value")
            _background(axes, setting, described, lengths)
            if row == rows - 1:
                end = ", to the end of a bin" if described.bin else ""
                axes.set_xlabel(f"input length ({setting.task.unit}{end})")
            if column == 0 or many:
                axes.set_ylabel(described.label, fontsize=8.5)
    marks = zip(settings[0].task.marks(settings[0].train_length), MARK_STYLES, strict=False)
    handles = [Line2D([], [], label=what, **style) for what, style in marks]
    legend(figure, settings[0].task.metrics[metric].best_quantile, handles)
    training = f"{run.experiment.steps:,} steps of {run.experiment.batch} sequences{so_far(run)}"
    counts = table["count"].sort()
    behind = " to ".join(dict.fromkeys(f"{count:,}" for count in (counts[0], counts[-1])))
    details = f"(gray: trained lengths; {training}; {behind} {settings[0].task.scored} behind a dot)"
    fits = len(title) + len(details) < CHARACTERS_PER_INCH * figure.get_figwidth()
    figure.suptitle((" " if fits else "\n").join((title, details)), fontsize=9.5)
    return figure


def _background(axes: Axes, setting: Setting, metric: Metric, lengths: list[int]) -> None:
    """Trained lengths, the score of a guess, and the lengths that the task marks."""
    shade(axes, sum(length <= setting.train_length for length in lengths) - 0.5)
    if metric.guess is not None:
        axes.axhline(metric.guess, color="gray", linewidth=0.8, zorder=0)
        right = axes.get_yaxis_transform()
        axes.text(1.003, metric.guess, "guess", transform=right, ha="left", va="center", fontsize=6.5, color="gray")
    centers = np.array(lengths) - (metric.bin or 0) / 2  # a violin of a bin stands for its middle
    for style, length in zip(MARK_STYLES, setting.task.marks(setting.train_length).values(), strict=False):
        axes.axvline(float(np.interp(length, centers, range(len(lengths)))), zorder=1, **style)
