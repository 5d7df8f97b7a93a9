"""Scores: one number per model at the selected checkpoint, over all lengths and over new lengths."""

from __future__ import annotations

from collections.abc import Collection

from resharpen.errors import UserError, unknown
from resharpen.experiments.keeping.opening import RunOrReference
from resharpen.lazy import pl
from resharpen.state import SELECTIONS
from resharpen.tasks import Task
from resharpen.tasks.trivial import trivial_values


def task_of(run: RunOrReference) -> Task:
    """A task of the run; all are of one kind."""
    return run.experiment.settings[0].task


def worst_values(run: RunOrReference) -> dict[str, float]:
    """Metric -> the value of a model without values, as declared by the task."""
    return {name: metric.worst for name, metric in task_of(run).metrics.items()}


def lengths_of(run: RunOrReference, test: str = "") -> pl.DataFrame:
    """The table `lengths` of one test distribution: by default the task itself. Tests are never mixed."""
    tests = dict.fromkeys(name for setting in run.experiment.settings for name in setting.task.tests)
    if test and test not in tests:
        if not tests:
            raise UserError(f"{run.directory} has no further tests: define them in the spec, as [task.test.{test}]")
        raise unknown(f"{run.directory} has no test", test, tests)
    return run.table("lengths").filter(test=test)


def reported_metrics(run: RunOrReference, lengths: pl.DataFrame | None = None) -> set[str]:
    """The metrics that have values."""
    rows = lengths_of(run) if lengths is None else lengths
    return set(rows.filter(rows["count"] > 0)["metric"].unique())


def check_reported(run: RunOrReference, metric: str, lengths: pl.DataFrame | None = None) -> None:
    """UserError for a metric that the task does not have, or for which this run has no values."""
    known = task_of(run).metrics
    if metric not in known:
        raise unknown("metric", metric, known)
    if metric not in (there := reported_metrics(run, lengths)):
        has = ", ".join(name for name in known if name in there) or "none yet"
        raise UserError(f"{run.directory} has no values of '{metric}': it was not measured there (measured: {has})")


def constants(
    run: RunOrReference, metric: str, settings: Collection[str], test: str = ""
) -> dict[str, dict[int, float]]:
    """Setting -> length -> the value of the best constant distribution on a test, where it is known."""
    seed = run.experiment.seed
    there = [s for s in run.experiment.settings if s.name in settings and test in ("", *s.task.tests)]
    tasks = {s.name: s.task.tested(test) for s in there}
    found = {name: trivial_values(task, seed, metric) for name, task in tasks.items()}
    return {name: values[metric] for name, values in found.items() if metric in values}


def not_recorded(run: RunOrReference) -> list[str]:
    """Hyperparameters that the run did not record, because it is older than they are."""
    experiment, models = run.experiment, run.table("models")
    drawn = {name: None for variant in set(models["variant"]) for name in experiment.rows(experiment.variants[variant])}
    return [name for name in drawn if models[name].is_null().all()]


def scored_lengths(run: RunOrReference, selection: str = "best", lengths: pl.DataFrame | None = None) -> pl.DataFrame:
    """The rows of `lengths` that are used, with the columns of `models`. Missing values:

    - A length with nothing to score has a count of 0 and is left out.
    - A model without a value at any length diverged before its first checkpoint. Its values stay null: it has no score,
      is left out of densities, counted in captions, and ranked worst in statistics.
    - A model that has values, but not at this length, gets the worst one here.

    `lengths` replaces the run's own rows, for example by those of another test, or by rescored ones.
    """
    if selection not in SELECTIONS:
        raise unknown("selection", selection, SELECTIONS)
    known = pl.col("value").is_not_null()
    value = pl.col("value").fill_null(
        pl.col("metric").replace_strict(worst_values(run), default=None, return_dtype=pl.Float64)
    )
    rows = lengths_of(run) if lengths is None else lengths
    return (
        rows.filter(pl.col("selection") == selection, pl.col("count") > 0)
        .join(run.table("models"), on="model", maintain_order="left")
        .with_columns(pl.when(known.any().over("model", "weights", "metric")).then(value).otherwise("value"))
    )


def scores(
    run: RunOrReference,
    selection: str = "best",
    lengths: pl.DataFrame | None = None,
    metric: str | None = None,
    test: str = "",
) -> pl.DataFrame:
    """Per model and kind of weights: the mean of a metric (default: the task's) over all lengths, `score`, and over new
    lengths, `score_new`, with the columns of `models`. Null where there are none, and for a model that diverged before
    its first checkpoint; see `scored_lengths`."""
    lengths = lengths_of(run, test) if lengths is None else lengths
    metric = metric or task_of(run).metric
    if metric != task_of(run).metric:
        check_reported(run, metric, lengths)
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


def tidy_results(run: RunOrReference, test: str | None = None) -> pl.DataFrame:
    """Every measured value of a run, one per row, with the columns of `models`; `error` is the standard error of a
    value on its report set, null if the set is not a sample or it was not measured. The column `test` names further
    test distributions and is empty for the task itself; with `test` only the rows of that one."""
    lengths = run.table("lengths") if test is None else lengths_of(run, test)
    variance = pl.col("without").list.var(ddof=0) * (pl.col("without").list.len() - 1.0)  # a jackknife
    lengths = lengths.with_columns(error=variance.sqrt()).drop("without")
    return lengths.join(run.table("models"), on="model", maintain_order="left")
