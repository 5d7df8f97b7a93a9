"""One number a model: how well it does at the kept checkpoint, over all lengths and over those it never saw."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resharpen.experiments.keeping.store import Run
from resharpen.tasks import Task

if TYPE_CHECKING:
    import polars as pl


def task_of(run: Run) -> Task:
    """A task of the run; all are of one kind."""
    return run.experiment.settings[0].task


def scores(run: Run, selection: str = "best", lengths: pl.DataFrame | None = None) -> pl.DataFrame:
    """Per model and kind of weights: the mean of the task's metric over all lengths, `score`, and over those longer
    than trained, `score_new`; null where there are none, and for a model that diverged before its first checkpoint.

    The other columns are those of the table `models`. `lengths` may be other rows than the run's own, rescored ones.
    """
    import polars as pl

    models = run.table("models")
    lengths = run.table("lengths") if lengths is None else lengths
    lengths = lengths.filter(pl.col("selection") == selection, pl.col("metric") == task_of(run).metric)
    new = pl.col("length") > pl.col("train_length")
    return (
        lengths.join(models.select("model", "train_length"), on="model")
        .group_by("model", "weights", maintain_order=True)
        .agg(
            pl.col("value").mean().alias("score"),
            pl.col("value").filter(new).mean().alias("score_new"),
            new.any().alias("has_new"),
        )
        .join(models, on="model", maintain_order="left")
    )


def tidy_results(run: Run) -> pl.DataFrame:
    """Every measured value of a run, one a row, with everything that is known about its model."""
    return run.table("lengths").join(run.table("models"), on="model", maintain_order="left")
