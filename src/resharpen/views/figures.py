"""The figures of a run: split violins by input length, or by training length."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from resharpen.analysis.scores import check_reported, reported_metrics, scored_lengths, scores, task_of
from resharpen.errors import unknown
from resharpen.experiments.keeping.opening import RunOrReference
from resharpen.experiments.specs.spec import Setting, labels
from resharpen.lazy import pl
from resharpen.state import SELECTIONS
from resharpen.tasks import Metric
from resharpen.views.palette import variant_colors
from resharpen.views.style import our_style, picture
from resharpen.views.violins import (
    Look,
    counted,
    draw_guess,
    finish_panel,
    fit_values,
    label_below,
    label_left,
    legend,
    name_size,
    shade,
    so_far,
    split_violins,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CHECKPOINTS = {
    "best": "at its best checkpoint",
    "best-trained": "at its best checkpoint on trained lengths",
    "last": "at its last checkpoint",
}
MANY_LENGTHS = 12
"""With more lengths than this, panels are wide and stacked."""
LABELS = 0.9
"""Inches beside the panels of a row, for the labels of the axis."""
TICKS_PER_INCH = 4
"""Most labels of an axis of lengths."""
MARK_STYLES = (
    {"color": "#888888", "linewidth": 2.6, "linestyle": "-"},
    {"color": "black", "linewidth": 0.9, "linestyle": "--"},
)
"""Line styles of the lengths that a task marks, in order; both are visible if they coincide."""


T = TypeVar("T")


class Figures(dict[str, "Figure"]):
    """Figures by name, which a notebook displays."""

    def _repr_html_(self) -> str:
        pictures = (base64.b64encode(picture(figure, "png")).decode() for figure in self.values())
        return "".join(f"<img src='data:image/png;base64,{png}' width='100%'>" for png in pictures)


@our_style()
def draw_figures(
    run: RunOrReference,
    selection: str = "best",
    read_with: str = "",
    lengths: pl.DataFrame | None = None,
    metric: str | None = None,
    test: str = "",
    look: Look = Look(),  # noqa: B008  it is frozen
) -> Figures:
    """`figure`, of the task's first metric, and one figure for each further metric that is drawn by default; or only a
    given metric.

    `lengths` replaces the run's own table of that name: the same models on another test, or with another attention.
    """
    if selection not in SELECTIONS:
        raise unknown("selection", selection, SELECTIONS)
    task, settings = task_of(run), run.experiment.settings
    read = (f", scored with {read_with}" if read_with else "") + (f", on test {test}" if test else "")
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
            figures[name] = _by_train_length(run, scores(run, selection, lengths, shown), caption, shown, look)
        elif shown in reported and (shown == first or metric or task.metrics[shown].drawn):
            rows = scored_lengths(run, selection, lengths).filter(metric=shown)
            figures[name] = _by_length(run, rows, title, look)
    return figures


def _by_train_length(run: RunOrReference, table: pl.DataFrame, caption: str, shown: str, look: Look) -> Figure:
    """The score over all lengths: one panel per task and variant, one violin per training length."""
    there = set(table["setting"])
    tasks = list(dict.fromkeys(setting.task for setting in run.experiment.settings if setting.name in there))
    variants = [name for name in run.experiment.variants if name in set(table["variant"])]
    colors = variant_colors(run.experiment.variants)
    columns, metric = look.columns(len(variants)), tasks[0].metrics[shown]
    rows = len(tasks) * -(-len(variants) // columns)
    figure = look.figure((LABELS + 3.1 * columns, 1.15 + 2.75 * rows), rows)
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    panels = _placed(grid, tasks, variants)
    kind = tasks[0].title.split(",")[0]
    names = {
        (task, variant): f"{variant}, {task.title.removeprefix(f'{kind}, ')}" if len(tasks) > 1 else variant
        for task, variant in panels
    }
    size = name_size([*names.values()], (figure.get_figwidth() - LABELS) / columns)
    for (task, variant), axes in panels.items():
        settings = [setting.name for setting in run.experiment.settings if setting.task == task]
        of_panel = table.filter(table["setting"].is_in(settings), variant=variant)
        lengths = sorted(of_panel["train_length"].unique())
        split_violins(axes, of_panel, {s: s for s in lengths}, "train_length", "score", metric, colors[variant])
        draw_guess(axes, metric.guess, "uniform\nguess" if axes in grid[:, -1] else "")
        axes.set_xticks(lengths)
        axes.margins(x=0.03)
        finish_panel(axes, names[task, variant], size, of_panel.is_empty())
    label_below(grid[-1], f"training length s ({tasks[0].unit})")
    label_left(grid[:, 0], f"mean {metric.label} over all lengths")
    fit_values([*panels.values()], 0.0 if metric.lower_is_better else None)
    legend(figure, [colors[variant] for variant in variants], metric.best_quantile)
    counts = counted(table.filter(weights="train"), "score")
    title = tasks[0].title if len(tasks) == 1 else kind
    look.entitle(figure, f"{title}: {caption}", f"({run.experiment.steps:,} steps; {counts}{so_far(run)})")
    return figure


def _placed(grid: np.ndarray, groups: Sequence[T], variants: Sequence[str]) -> dict[tuple[T, str], Axes]:
    """The panel of each variant of each group; the rows of a group are below those of the one before."""
    blocks = zip(groups, np.split(grid, len(groups)), strict=True)
    panels = {(group, name): axes for group, block in blocks for name, axes in zip(variants, block.flat, strict=False)}
    for axes in grid.flat:
        if axes not in panels.values():
            axes.axis("off")
    return panels


def _by_length(run: RunOrReference, table: pl.DataFrame, title: str, look: Look) -> Figure:
    """A metric by length: one panel per setting and variant, one violin per length; trained lengths are shaded."""
    from matplotlib.lines import Line2D

    metric = table["metric"][0]
    variants = [name for name in run.experiment.variants if name in set(table["variant"])]
    colors = variant_colors(run.experiment.variants)
    settings = [setting for setting in run.experiment.settings if setting.name in set(table["setting"])]
    shown = {setting.name: sorted(table.filter(setting=setting.name)["length"].unique()) for setting in settings}
    many = max(map(len, shown.values())) > MANY_LENGTHS
    columns = len(settings) if many else look.columns(len(variants))
    rows = len(variants) if many else len(settings) * -(-len(variants) // columns)
    width, height = (6.6, 1.9) if many else (3.3, 3.0 if rows == 1 else 2.3)
    figure = look.figure((LABELS + width * columns, 0.9 + height * rows), rows)
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    panels = _placed(grid.T if many else grid, settings, variants)
    told = labels(settings)
    names = [variant if len(settings) == 1 else f"{told[setting.name]}, {variant}" for setting, variant in panels]
    inches = (figure.get_figwidth() - LABELS) / columns
    for name, ((setting, variant), axes) in zip(names, panels.items(), strict=True):
        described, lengths = setting.task.metrics[metric], shown[setting.name]
        of_panel = table.filter(setting=setting.name, variant=variant)
        places = {n: x for x, n in enumerate(lengths)}
        split_violins(axes, of_panel, places, "length", "value", described, colors[variant])
        every = -(-len(lengths) // int(TICKS_PER_INCH * inches))
        _name_lengths(axes, lengths, described, every)
        axes.set_xlim(-0.6, len(lengths) - 0.4)
        draw_guess(axes, described.guess, "guess" if axes in grid[:, -1] else "")
        _background(axes, setting, described, lengths)
        finish_panel(axes, name, name_size(names, inches), of_panel.is_empty())
        if many and axes not in grid[-1]:
            axes.tick_params(labelbottom=False)  # panels above each other have the same lengths
    fit_values([*panels.values()])
    bins = ", in bins" if settings[0].task.metrics[metric].bin else ""
    label_below(grid[-1], f"input length ({settings[0].task.unit}{bins})")
    measured = [setting.task.metrics[metric].label for setting in settings]
    if len(set(measured)) == 1:
        label_left(grid[:, 0], measured[0])
    else:
        for label, block in zip(measured, np.split(grid.T if many else grid, len(settings)), strict=True):
            label_left(block[0] if many else block[:, 0], label)
    marks = zip(settings[0].task.marks(settings[0].train_length), MARK_STYLES, strict=False)
    handles = [Line2D([], [], label=what, **style) for what, style in marks]
    legend(figure, [colors[name] for name in variants], settings[0].task.metrics[metric].best_quantile, handles)
    first = {setting.name: shown[setting.name][0] for setting in settings}
    one_each = table.filter(table["length"] == table["setting"].replace_strict(first), weights="train")
    counts = table["count"].sort()
    behind = " to ".join(dict.fromkeys(f"{count:,}" for count in (counts[0], counts[-1])))
    look.entitle(
        figure,
        title,
        f"({run.experiment.steps:,} steps of {run.experiment.batch} sequences;",
        f"{counted(one_each, 'value')}{so_far(run)};",
        f"gray: trained lengths; {behind} {settings[0].task.scored} per dot)",
    )
    return figure


def _name_lengths(axes: Axes, lengths: list[int], metric: Metric, every: int) -> None:
    """Every so manyth length below its violin; the end of a bin at the right edge of its violin."""
    shown = [i for i, n in enumerate(lengths) if (n // metric.bin if metric.bin else i) % every == 0]
    at = [i + (0.5 if metric.bin else 0.0) for i in shown]
    axes.set_xticks(at, [f"{lengths[i]:,}" for i in shown], rotation=45)


def _background(axes: Axes, setting: Setting, metric: Metric, lengths: list[int]) -> None:
    """Trained lengths, and the lengths that the task marks."""
    shade(axes, sum(length <= setting.train_length for length in lengths) - 0.5)
    centers = np.array(lengths) - (metric.bin or 0) / 2  # the violin of a bin is at its center
    for style, length in zip(MARK_STYLES, setting.task.marks(setting.train_length).values(), strict=False):
        axes.axvline(float(np.interp(length, centers, range(len(lengths)))), zorder=1, **style)
