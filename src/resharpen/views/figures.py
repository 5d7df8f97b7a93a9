"""The figures of a run, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resharpen.analysis.rescoring import rescore
from resharpen.analysis.scores import task_of
from resharpen.experiments.store import Run
from resharpen.tasks import MaxRetrieval
from resharpen.views.by_length import draw_by_length
from resharpen.views.set_complement import draw_set_complement

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(run: Run, selection: str = "best", attention: str | None = None) -> dict[str, Figure]:
    """`figure` is the paper's; what else there is belongs to it. `attention` rereads the kept models with a remedy."""
    task = task_of(run)
    lengths = None if attention is None else rescore(run, attention, selection)
    if not isinstance(task, MaxRetrieval):
        return {"figure": draw_set_complement(run, selection, lengths)}
    title = f"Maximum Retrieval{f', read with {attention}' if attention else ''}: each dot is a model"
    return {
        "figure": draw_by_length(run, "accuracy", title, selection, lengths, chance=1 / task.classes),
        "entropy": draw_by_length(run, "entropy", title, selection, lengths),
        "largest-weight": draw_by_length(run, "largest_weight", title, selection, lengths),
    }
