"""The figures of a run, by name."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, Optional

from resharpen.analysis.scores import check_reported, reported_metrics, task_of
from resharpen.errors import unknown
from resharpen.experiments.keeping.opening import RunOrReference
from resharpen.state import SELECTIONS
from resharpen.views.by_length import draw_by_length
from resharpen.views.by_train_length import draw_by_train_length

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

Lengths = Optional["pl.DataFrame"]
CHECKPOINTS = {
    "best": "at its best checkpoint",
    "best-trained": "at its best checkpoint as judged on trained lengths",
    "last": "at its last checkpoint",
}


class Figures(dict[str, "Figure"]):
    """By name. In a notebook they show themselves."""

    def _repr_html_(self) -> str:
        return "".join(f"<img src='data:image/png;base64,{_png(figure)}' width='100%'>" for figure in self.values())


def draw_figures(
    run: RunOrReference,
    selection: str = "best",
    read_with: str = "",
    lengths: Lengths = None,
    metric: str | None = None,
) -> Figures:
    """`figure` is the task's own; what else there is belongs to it. With a metric, only that one. `lengths` are rows to
    draw in place of the run's own, of models that were read with another attention."""
    if selection not in SELECTIONS:
        raise unknown("selection", selection, SELECTIONS)
    task, settings = task_of(run), run.experiment.settings
    read = f", read with {read_with}" if read_with else ""
    caption = f"each dot is a model with its own random hyperparameters, {CHECKPOINTS[selection]}{read}"
    figures = Figures()
    there = set(run.table("models")["setting"])
    names = list(dict.fromkeys(setting.task.title for setting in settings if setting.name in there))
    title = f"{', '.join(names) if len(names) < 3 else f'{len(names)} tasks'}: {caption}"
    first = next(iter(task.metrics))
    if metric is not None:
        check_reported(run, metric, lengths)
    for name in task.metrics if metric is None else [metric]:
        title_of = "figure" if name == first else name.replace("_", "-")
        if task.shown_by == "train_length" and (name == first or metric is not None):
            figures[title_of] = draw_by_train_length(run, caption, selection, lengths, name)
        elif name in reported_metrics(run, lengths) and (name == first or metric or task.metrics[name].drawn):
            figures[title_of] = draw_by_length(run, settings, name, title, selection, lengths)
    return figures


def _png(figure: Figure) -> str:
    data = io.BytesIO()
    figure.savefig(data, format="png")
    return base64.b64encode(data.getvalue()).decode()
