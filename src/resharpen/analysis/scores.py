"""Scores: one number per model at the kept checkpoint, over all lengths and over new lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resharpen.errors import unknown
from resharpen.experiments.keeping.opening import RunOrReference
from resharpen.state import SELECTIONS
from resharpen.tasks import Task

if TYPE_CHECKING:
    import polars as pl


def task_of(run: RunOrReference) -> Task:
    """A task of the run; all are of one kind."""
    return run.experiment.settings[0].task


def worst_values(run: RunOrReference) -> dict[str, float]:
    """Metric -> the value of a model that has none, as declared by the task."""
    return {name: metric.worst for name, metric in task_of(run).metrics.items()}


def not_recorded(run: RunOrReference) -> list[str]:
    """Hyperparameters that the run did not record, because it is older than they are."""
    experiment, models = run.experiment, run.table("models")
    drawn = {name: None for variant in set(models["variant"]) for name in experiment.rows(experiment.variants[variant])}
    return [name for name in drawn if models[name].is_null().all()]


def scored_lengths(run: RunOrReference, selection: str = "best", lengths: pl.DataFrame | None = None) -> pl.DataFrame:
    """The rows of `lengths` that count, with the columns of `models`. The one rule on missing values:

    - A length with nothing to score has a count of 0 and is left out.
    - A model without a value at any length diverged before its first checkpoint. Its values stay null: it has no score,
      is left out of densities, counted in captions, and ranked worst in statistics.
    - A model that has values, but not at this length, gets the worst one here.

    `lengths` replaces the run's own rows, for example by rescored ones.
    """
    import polars as pl

    if selection not in SELECTIONS:
        raise unknown("selection", selection, SELECTIONS)
    known = pl.col("value").is_not_null()
    value = pl.col("value").fill_null(
        pl.col("metric").replace_strict(worst_values(run), default=None, return_dtype=pl.Float64)
    )
    rows = run.table("lengths") if lengths is None else lengths
    return (
        rows.filter(pl.col("selection") == selection, pl.col("count") > 0)
        .join(run.table("models"), on="model", maintain_order="left")
        .with_columns(pl.when(known.any().over("model", "weights", "metric")).then(value).otherwise("value"))
    )


def scores(
    run: RunOrReference, selection: str = "best", lengths: pl.DataFrame | None = None, metric: str | None = None
) -> pl.DataFrame:
    """Per model and kind of weights: the mean of a metric (default: the task's) over all lengths, `score`, and over new
    lengths, `score_new`, with the columns of `models`. Null where there are none, and for a model that diverged before
    its first checkpoint; see `scored_lengths`."""
    import polars as pl

    metric, known = metric or task_of(run).metric, task_of(run).metrics
    if metric not in known:
        raise unknown("metric", metric, known)
    rows = scored_lengths(run, selection, lengths).filter(pl.col("metric") == metric)
    new = pl.col("length") > pl.col("train_length")
    return (
        rows.group_by("model", "weights", maintain_order=True)
        .agg(
            pl.col("value").mean().alias("score"),
            pl.col("value").filter(new).mean().alias("score_new"),
            new.any().alias("has_new"),
        )
        .join(run.table("models"), on="model", maintain_order="left")
    )


def tidy_results(run: RunOrReference) -> pl.DataFrame:
    """Every measured value of a run, one per row, with the columns of `models`."""
    return run.table("lengths").join(run.table("models"), on="model", maintain_order="left")
