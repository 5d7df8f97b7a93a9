"""The figures of a run, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resharpen.analysis.rescoring import rescore
from resharpen.analysis.scores import task_of
from resharpen.experiments.store import Run
from resharpen.tasks import MaxRetrieval, SetComplement
from resharpen.views.by_length import draw_by_length
from resharpen.views.set_complement import draw_set_complement

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRICS = {
    "retrieval": {"figure": "accuracy", "entropy": "entropy", "largest-weight": "largest_weight"},
    "language": {"figure": "tvd", "auc": "auc"},
}
"""Name of a picture -> the metric it shows, by kind of task."""


def draw(run: Run, selection: str = "best", attention: str | None = None) -> dict[str, Figure]:
    """`figure` is the paper's; what else there is belongs to it. `attention` rereads the kept models with a remedy."""
    task = task_of(run)
    lengths = None if attention is None else rescore(run, attention, selection)
    if isinstance(task, SetComplement):
        return {"figure": draw_set_complement(run, selection, lengths)}
    metrics = METRICS["retrieval" if isinstance(task, MaxRetrieval) else "language"]
    read = f", read with {attention}" if attention else ""
    figures = {}
    for setting in run.experiment.settings:
        of = f"-{setting.name}" if len(run.experiment.settings) > 1 else ""
        title = f"{setting.name}{read}: each dot is a model at its {selection} checkpoint"
        for name, metric in metrics.items():
            figures[f"{name}{of}"] = draw_by_length(run, setting, metric, title, selection, lengths)
    return figures
