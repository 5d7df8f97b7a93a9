"""`rs.run` and `rs.draw`: training and drawing from Python, with live progress and clean interrupts in a notebook."""

from pathlib import Path
from typing import Any

from resharpen.analysis.scores import lengths_of
from resharpen.errors import UserError
from resharpen.experiments.keeping.opening import RunOrReference
from resharpen.experiments.keeping.store import Run
from resharpen.experiments.running import runner
from resharpen.experiments.running.rescoring import Track, rescore
from resharpen.experiments.specs.spec import Experiment
from resharpen.signals import Orderly, orderly
from resharpen.views.figures import Figures, draw_figures
from resharpen.views.progress import NotebookProgress, in_notebook
from resharpen.views.violins import Look


class Interruptible(Orderly):
    """A second interrupt ends the cell immediately, but not the kernel."""

    def stop(self, number: int, _frame: object) -> None:
        if self.number:
            raise KeyboardInterrupt
        self.number = number


def run(experiment: Experiment, directory: str | Path, **how: Any) -> Run:
    """Train all models of an experiment in a directory, or continue a run. `how` are further arguments of
    `experiments.running.runner.run`, for example `workers`. In a notebook progress is shown, and the interrupt button
    stops training after saving its state; run the same cell again to continue."""
    if not in_notebook():
        return runner.run(experiment, directory, **how)
    with orderly(Interruptible()) as asked:
        store = runner.run(experiment, directory, **{"observer": runner.watched(NotebookProgress(), asked), **how})
    if asked.is_stopping():
        print("Stopped; nothing is lost. Run this cell again to continue.")
    return store


def draw(
    run: RunOrReference,
    selection: str = "best",
    attention: str | None = None,
    track: Track = iter,
    metric: str | None = None,
    test: str = "",
    look: Look = Look(),  # noqa: B008  it is frozen
) -> Figures:
    """The figures of a run by name, `figure` first; with `metric` only that metric, with `test` on that test
    distribution. With `attention` the stored models are scored with another attention, as by `rescore`; `track`
    iterates over the shards and may show progress; `look` sets width and title."""
    if attention is None:
        return draw_figures(run, selection, lengths=lengths_of(run, test), metric=metric, test=test, look=look)
    if not isinstance(run, Run):
        raise UserError(f"{run.directory} is a reference: it has no weights to score with {attention}")
    lengths_of(run, test)  # an unknown test is reported before anything is scored
    lengths = rescore(run, attention, selection, track, test)
    return draw_figures(run, selection, attention, lengths, metric, test, look)
