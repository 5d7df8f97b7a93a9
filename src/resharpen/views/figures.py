"""The figures of a run, by name."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

from resharpen.analysis.scores import task_of
from resharpen.errors import UserError, unknown
from resharpen.experiments.keeping.results import Results
from resharpen.experiments.keeping.store import Run
from resharpen.experiments.running.rescoring import Track, rescore
from resharpen.experiments.specs.schema import SELECTIONS
from resharpen.views.by_length import draw_by_length
from resharpen.views.by_train_length import draw_by_train_length

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

CHECKPOINTS = {
    "best": "at its best checkpoint",
    "best-trained": "at its best checkpoint as judged on trained lengths",
    "last": "at its last checkpoint",
}


class Figures(dict[str, "Figure"]):
    """By name. In a notebook they show themselves."""

    def _repr_html_(self) -> str:
        return "".join(f"<img src='data:image/png;base64,{_png(figure)}' width='100%'>" for figure in self.values())


def draw(run: Results, selection: str = "best", attention: str | None = None, track: Track = iter) -> Figures:
    """`figure` is the task's own; what else there is belongs to it. `attention` reads the kept models with another, as
    `rescore` does."""
    if selection not in SELECTIONS:
        raise unknown("selection", selection, SELECTIONS)
    task, settings = task_of(run), run.experiment.settings
    lengths = None
    if attention is not None:
        if not isinstance(run, Run):
            raise UserError(f"{run.directory} is a reference: it has no weights to read with {attention}")
        lengths = rescore(run, attention, selection, track)
    read = f", read with {attention}" if attention else ""
    caption = f"each dot is a model with its own random hyperparameters, {CHECKPOINTS[selection]}{read}"
    figures = Figures()
    there = set(run.table("models")["setting"])
    names = list(dict.fromkeys(setting.task.title for setting in settings if setting.name in there))
    title = f"{', '.join(names) if len(names) < 3 else f'{len(names)} tasks'}: {caption}"
    for i, metric in enumerate(task.metrics):
        name = metric.replace("_", "-") if i else "figure"
        if i == 0 and task.shown_by == "train_length":
            figures[name] = draw_by_train_length(run, caption, selection, lengths)
        elif metric in _reported(run, lengths):
            figures[name] = draw_by_length(run, settings, metric, title, selection, lengths)
    return figures


def _reported(run: Results, lengths: pl.DataFrame | None) -> set[str]:
    """The metrics of which there is anything to show."""
    rows = run.table("lengths") if lengths is None else lengths
    return set(rows.filter(rows["count"] > 0)["metric"].unique())


def _png(figure: Figure) -> str:
    data = io.BytesIO()
    figure.savefig(data, format="png")
    return base64.b64encode(data.getvalue()).decode()
