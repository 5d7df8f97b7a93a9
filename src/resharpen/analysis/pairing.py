"""Pairs of models to compare: the same draws of the same settings, in one run or in two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any

import numpy as np

from resharpen.analysis.report_set import Constant, Places
from resharpen.analysis.samples import paired_only
from resharpen.analysis.scores import check_reported, constants, lengths_of, scored_lengths, task_of
from resharpen.analysis.statistics import quantile
from resharpen.errors import UserError, unknown
from resharpen.experiments.keeping.opening import RunOrReference
from resharpen.experiments.specs.counts import Counts
from resharpen.experiments.specs.spec import labels, roles
from resharpen.experiments.specs.toml import differences, tasks_data, to_data
from resharpen.lazy import pl
from resharpen.streams import GROUP
from resharpen.tasks import Metric

LEARNED = 0.02
"""Share of the distance from the best constant to a perfect score that a model must cover to count as better."""


@dataclass(frozen=True)
class Compared:
    """The subject of a comparison."""

    baseline: str
    variants: tuple[str, ...]
    """Variants, without the baseline."""
    settings: tuple[str, ...]
    metric: Metric
    unit: str
    """Of lengths."""
    weights: str
    selection: str
    test: str
    """The further test distribution that is compared on; empty for the task itself."""
    parameters: Counts
    labels: Mapping[str, str]
    """Setting -> label for display."""


@dataclass(frozen=True)
class Paired(Compared):
    """Values of a metric at the selected checkpoints, for draws that all variants have."""

    hyperparameters: dict[str, tuple[str, ...]]
    """Variant -> its hyperparameters."""
    every: pl.DataFrame
    """One row per model, kind of weights and length, with the columns of `models`; `gain` is the value with the sign
    for which higher is better, null for a model without values; `new` is whether the length is new."""
    constant: Mapping[str, Mapping[int, float]]
    """Setting -> length -> the value of the best constant distribution, if p* is known."""

    @property
    def sign(self) -> int:
        return -1 if self.metric.lower_is_better else 1

    @cached_property
    def rows(self) -> pl.DataFrame:
        return self.every.filter(weights=self.weights)

    @cached_property
    def scores(self) -> pl.DataFrame:
        """The mean over all lengths, of both kinds of weights."""
        cell = ["setting", "variant", "weights", "draw"]
        return self.every.group_by(cell, maintain_order=True).agg(pl.col("value").mean().alias("score"))

    def means(self) -> dict[Any, pl.DataFrame]:
        """`all` and, if there are any, `new` lengths -> one row per model with its mean gain."""
        found = {"all": self.rows, "new": self.rows.filter("new")}
        cell = ["setting", "variant", "draw"]
        return {
            lengths: rows.group_by(cell, maintain_order=True).agg(pl.col("gain").mean(), pl.exclude("gain").first())
            for lengths, rows in found.items()
            if not rows.is_empty()
        }

    def shown(self) -> pl.DataFrame:
        """For each setting the means over new lengths, or over all lengths if it has no new ones."""
        means = self.means()
        new = means.get("new", means["all"].clear())
        return pl.concat([means["all"].filter(~pl.col("setting").is_in(new["setting"].unique().to_list())), new])

    def places(self, rows: pl.DataFrame, settings: Sequence[str]) -> Places | None:
        """The number of scored places in the rows of these settings."""
        if "count" not in rows.columns:
            return None
        counts = rows.filter(pl.col("setting").is_in(settings)).group_by("setting", "length").agg(pl.col("count").max())
        return Places(int(counts["count"].sum()), int(counts["count"].min()))  # pyright: ignore[reportArgumentType]

    def beside_constant(self, rows: pl.DataFrame, variant: str, settings: Sequence[str]) -> Constant | None:
        """The number of models that are better than the best constant, by the mean over the lengths of these rows."""
        if not all(setting in self.constant for setting in settings):
            return None
        table = pl.DataFrame(
            [(s, length, value) for s in settings for length, value in self.constant[s].items()],
            {"setting": pl.String, "length": pl.Int64, "constant": pl.Float64},
            orient="row",
        )
        there = rows.filter(pl.col("variant").is_in([variant, self.baseline])).join(table, on=["setting", "length"])
        if there.is_empty():
            return None
        constant, bound = self.sign * pl.col("constant").mean(), self.sign * self.metric.bound
        needed = constant + LEARNED * (bound - constant) if isfinite(bound) else constant
        better = pl.col("gain").mean() > needed
        each = there.group_by("variant", "setting", "draw", maintain_order=True).agg(
            better.fill_null(False).alias("better"), pl.col("constant").mean()
        )
        count = {v: (int(part["better"].sum()), len(part)) for (v,), part in each.group_by("variant")}
        value = float(each.group_by("setting", maintain_order=True).agg(pl.col("constant").first())["constant"].mean())  # pyright: ignore[reportArgumentType]
        return Constant(value, self.metric.bound, *count[variant], *count[self.baseline])

    def models(self) -> list[tuple[str, str, int, int, float, float]]:
        """(variant, setting, models, how many of them diverged, the median and the best tenth of what is shown)"""
        worst = self.sign * self.metric.worst
        value = pl.col("gain").fill_null(worst) * self.sign
        columns = (pl.len(), pl.col("diverged_at").is_not_null().sum().alias("diverged"), value.alias("values"))
        best = self.metric.best_quantile
        return [
            (*cell, quantile(np.array(values), 0.5), quantile(np.array(values), best))
            for *cell, values in self.shown().group_by("variant", "setting", maintain_order=True).agg(*columns).rows()
        ]


def pair(
    run: RunOrReference,
    variants: Sequence[str],
    other: RunOrReference | None,
    baseline: str | None,
    weights: str,
    selection: str,
    metric: str | None,
    pool: Sequence[RunOrReference],
    test: str,
) -> Paired:
    """Pair the draws of a run, or of two. UserError for unknown variants, and for runs whose draws cannot be paired.
    `pool` are runs that differ only in the seed: their draws are added."""
    task = task_of(run)
    compared = metric or task.metric
    check_reported(run, compared, lengths_of(run, test))
    if pool and other is not None:
        raise UserError("use either another run to compare with or runs of other seeds to pool, not both")
    seeds = {run.experiment.seed}
    for more in pool:
        if (seed := more.experiment.seed) in seeds:
            raise UserError(f"{more.directory} has the same seed as another run ({seed}), so its draws are the same")
        seeds.add(seed)
        _check_same_draws(run, more, apart_from="seed")
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
        raise UserError(f"{run.directory} has no variant to compare '{base}' with; add another run with --with RUN_B")
    tables = {id(source): _values(source, compared, selection, test) for source in (run, other) if source is not None}
    tables[id(run)] = _pooled([tables[id(run)], *(_values(more, compared, selection, test) for more in pool)])
    parts = [
        tables[id(source)].filter(pl.col("variant") == own).with_columns(variant=pl.lit(name))
        for name in dict.fromkeys(chosen)
        for source, own in (named[name],)
    ]
    rows = pl.concat(parts, how="diagonal")
    rows = paired_only(rows.filter(pl.col("variant").n_unique().over("setting") == len(parts)))
    if rows.is_empty():
        raise UserError(f"no draw is finished in all variants yet; continue with: {run.command}")
    if weights not in set(rows["weights"]):
        raise unknown("weights", weights, rows["weights"].unique())
    settings = [setting for setting in run.experiment.settings if setting.name in set(rows["setting"])]
    return Paired(
        base,
        tuple(dict.fromkeys(chosen[1:])),
        tuple(setting.name for setting in settings),
        task.metrics[compared],
        task.unit,
        weights,
        selection,
        test,
        {
            (setting.name, name): source.experiment.parameter_count(setting, own)
            for name in dict.fromkeys(chosen)
            for source, own in (named[name],)
            for setting in settings
        },
        labels(settings),
        {name: tuple(source.experiment.rows(source.experiment.variants[own])) for name, (source, own) in named.items()},
        rows,
        constants(run, compared, set(rows["setting"]), test),
    )


def _values(run: RunOrReference, metric: str, selection: str, test: str) -> pl.DataFrame:
    lengths = lengths_of(run, test)
    check_reported(run, metric, lengths)
    lower = task_of(run).metrics[metric].lower_is_better
    return (
        scored_lengths(run, selection, lengths)
        .filter(metric=metric)
        .with_columns(gain=pl.col("value") * (-1 if lower else 1), new=pl.col("length") > pl.col("train_length"))
    )


def _pooled(tables: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """One table with consecutive numbers of draws, in whole groups."""
    if len(tables) == 1:
        return tables[0]
    apart = GROUP * (1 + max(int(table["draw"].max() or 0) for table in tables) // GROUP)  # pyright: ignore[reportArgumentType]
    return pl.concat([table.with_columns(pl.col("draw") + i * apart) for i, table in enumerate(tables)], how="diagonal")


def _check_same_draws(run: RunOrReference, other: RunOrReference, apart_from: str = "") -> None:
    ours, theirs = ({setting.name: setting for setting in r.experiment.settings} for r in (run, other))
    common = [name for name in ours if name in theirs]
    if not common:
        raise UserError(
            f"{run.directory} and {other.directory} have no setting in common: {', '.join(ours)}; {', '.join(theirs)}"
        )
    a, b = (
        # everything except the settings must agree, otherwise a pair differs in more than the variant
        {
            name: to_data(r.experiment)[name]
            for name, role in roles(r.experiment).items()
            if role.pairs and name != apart_from
        }
        # task, length and model; a further test changes neither models nor other values
        | {name: {**tasks_data([settings[name]])[0], "test": None} for name in common}
        for r, settings in ((run, ours), (other, theirs))
    )
    if changes := differences(a, b):
        raise UserError(f"{other.directory} cannot be paired with {run.directory} ({'; '.join(changes)})")
