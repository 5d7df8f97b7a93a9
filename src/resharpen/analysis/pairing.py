"""What can be compared pair by pair: the same draws of the same settings, in one run or in two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from resharpen.analysis.samples import paired_only
from resharpen.analysis.scores import scored_lengths, task_of
from resharpen.analysis.statistics import quantile
from resharpen.errors import UserError, unknown
from resharpen.experiments.keeping.opening import RunOrReference
from resharpen.experiments.specs.counts import Counts
from resharpen.experiments.specs.spec import roles
from resharpen.experiments.specs.toml import differences, tasks_data, to_data
from resharpen.tasks import Metric

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Paired:
    """Values of the task's metric at the best checkpoints, of the draws that every variant has."""

    baseline: str
    variants: tuple[str, ...]
    """Without the baseline."""
    settings: tuple[str, ...]
    metric: Metric
    unit: str
    weights: str
    hyperparameters: dict[str, tuple[str, ...]]
    """Of each variant, what is drawn for its models."""
    every: pl.DataFrame
    """One row per model, kind of weights and length, with the columns of `models`; `gain` is the value with the sign
    that makes more better, null for a model without any, `new` whether the length is longer than trained."""
    parameters: Counts = field(default_factory=dict)

    @property
    def sign(self) -> int:
        return -1 if self.metric.lower_is_better else 1

    @cached_property
    def rows(self) -> pl.DataFrame:
        return self.every.filter(weights=self.weights)

    @cached_property
    def scores(self) -> pl.DataFrame:
        """The mean over all lengths, of both kinds of weights."""
        import polars as pl

        cell = ["setting", "variant", "weights", "draw"]
        return self.every.group_by(cell, maintain_order=True).agg(pl.col("value").mean().alias("score"))

    def means(self) -> dict[Any, pl.DataFrame]:
        """`all` and, where there are any, `new` lengths -> one row per model with its mean gain."""
        import polars as pl

        found = {"all": self.rows, "new": self.rows.filter("new")}
        cell = ["setting", "variant", "draw"]
        return {
            lengths: rows.group_by(cell, maintain_order=True).agg(pl.col("gain").mean(), pl.exclude("gain").first())
            for lengths, rows in found.items()
            if not rows.is_empty()
        }

    def shown(self) -> pl.DataFrame:
        """Of each setting the means over new lengths, or over all where it has no new ones."""
        import polars as pl

        means = self.means()
        new = means.get("new", means["all"].clear())
        return pl.concat([means["all"].filter(~pl.col("setting").is_in(new["setting"].unique().to_list())), new])

    def models(self) -> list[tuple[str, str, int, int, float, float]]:
        """(variant, setting, models, how many of them diverged, the median and the best tenth of what is shown)"""
        import polars as pl

        worst = self.sign * self.metric.worst
        value = pl.col("gain").fill_null(worst) * self.sign
        columns = (
            pl.len(),
            pl.col("diverged_at").is_not_null().sum().alias("diverged"),
            value.alias("values"),
        )
        best = self.metric.best_quantile
        return [
            (*cell, quantile(np.array(values), 0.5), quantile(np.array(values), best))
            for *cell, values in self.shown().group_by("variant", "setting", maintain_order=True).agg(*columns).rows()
        ]


def pair(
    run: RunOrReference,
    variants: Sequence[str] = (),
    other: RunOrReference | None = None,
    baseline: str | None = None,
    weights: str = "train",
) -> Paired:
    """UserError for variants that are not there, and for runs whose draws make no pairs."""
    import polars as pl

    task = task_of(run)
    metric = task.metrics[task.metric]
    named = {name: (run, name) for name in run.experiment.variants}
    if other is not None:
        _check_same_draws(run, other)
        label = other.directory.resolve().name
        named |= {f"{v}@{label}" if v in named else v: (other, v) for v in other.experiment.variants}
    for name in (*variants, *([baseline] if baseline else [])):
        if name not in named:
            raise unknown("variant", name, named)
    base = baseline or run.experiment.baseline or next(iter(run.experiment.variants))
    chosen = [base, *(name for name in variants or named if name != base)]
    if len(chosen) == 1:
        raise UserError(f"{run.directory} has nothing to compare '{base}' with; add another run with --with RUN_B")
    tables = {id(source): _values(source) for source in (run, other) if source is not None}
    parts = [
        tables[id(source)].filter(pl.col("variant") == own).with_columns(variant=pl.lit(name))
        for name in dict.fromkeys(chosen)
        for source, own in (named[name],)
    ]
    rows = pl.concat(parts, how="diagonal")
    rows = paired_only(rows.filter(pl.col("variant").n_unique().over("setting") == len(parts)))
    if rows.is_empty():
        raise UserError(f"there is no draw yet that all variants have; continue with: {run.command}")
    if weights not in set(rows["weights"]):
        raise unknown("weights", weights, rows["weights"].unique())
    return Paired(
        base,
        tuple(dict.fromkeys(chosen[1:])),
        tuple(setting.name for setting in run.experiment.settings if setting.name in set(rows["setting"])),
        metric,
        task.unit,
        weights,
        {name: tuple(source.experiment.rows(source.experiment.variants[own])) for name, (source, own) in named.items()},
        rows,
        {
            (setting.name, name): source.experiment.parameter_count(setting, own)
            for name in dict.fromkeys(chosen)
            for source, own in (named[name],)
            for setting in source.experiment.settings
            if setting.name in set(rows["setting"])
        },
    )


def _values(run: RunOrReference) -> pl.DataFrame:
    import polars as pl

    task = task_of(run)
    return (
        scored_lengths(run)
        .filter(metric=task.metric)
        .with_columns(
            gain=pl.col("value") * (-1 if task.lower_is_better else 1), new=pl.col("length") > pl.col("train_length")
        )
    )


def _check_same_draws(run: RunOrReference, other: RunOrReference) -> None:
    ours, theirs = ({setting.name: setting for setting in r.experiment.settings} for r in (run, other))
    common = [name for name in ours if name in theirs]
    if not common:
        raise UserError(
            f"{run.directory} and {other.directory} have no setting in common: {', '.join(ours)}; {', '.join(theirs)}"
        )
    a, b = (
        # settings apart, else a pair differs in more than the variant
        {name: to_data(r.experiment)[name] for name, role in roles(r.experiment).items() if role.pairs}
        | {name: tasks_data([settings[name]])[0] for name in common}  # task, training length and model
        for r, settings in ((run, ours), (other, theirs))
    )
    if changes := differences(a, b):
        raise UserError(f"{other.directory} does not pair with {run.directory} ({'; '.join(changes)})")
