"""The figures of a run, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resharpen.analysis.rescoring import rescore
from resharpen.analysis.scores import task_of
from resharpen.experiments.store import Run
from resharpen.tasks import MaxRetrieval, SetComplement, Task
from resharpen.views.by_length import draw_by_length, label
from resharpen.views.set_complement import draw_set_complement

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(run: Run, selection: str = "best", attention: str | None = None) -> dict[str, Figure]:
    """`figure` is the paper's; what else there is belongs to it. `attention` rereads the kept models with a remedy."""
    task, settings = task_of(run), run.experiment.settings
    lengths = None if attention is None else rescore(run, attention, selection)
    if isinstance(task, SetComplement):
        return {"figure": draw_set_complement(run, selection, lengths)}
    read = f", read with {attention}" if attention else ""
    names = ", ".join(dict.fromkeys(label(setting.task) for setting in settings))
    title = (
        f"{names if len(settings) < 3 else 'Formal languages'}{read}: each dot is a model at its {selection} checkpoint"
    )
    return {
        name: draw_by_length(run, settings, metric, title, selection, lengths)
        for name, metric in _pictures(task).items()
    }


def _pictures(task: Task) -> dict[str, str]:
    """Name of a picture -> the metric it shows."""
    if isinstance(task, MaxRetrieval):
        return {"figure": "accuracy", "entropy": "entropy", "largest-weight": "largest_weight"}
    return {"figure": "tvd", "auc": "auc"} if task.metric == "tvd" else {"figure": "auc", "tvd": "tvd"}
