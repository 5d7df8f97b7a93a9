"""Validation of the tables of runs and references: the declared columns, with values that training can produce. A
correct hash only shows that nothing changed by accident.

- Types are those of the schema; integers and floats of another width are cast without loss.
- A column that older tables do not have is filled in from the spec, or with its default, usually null: not recorded.
  Unknown columns are dropped.
- Rows of unknown metrics stay but are not drawn. The metric that selects checkpoints is required; older tables may lack
  the others.
- Every model has all its rows exactly once, and no other model has any. A diverged model has null values.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from resharpen import own
from resharpen.errors import Failed
from resharpen.experiments.keeping import files
from resharpen.experiments.keeping.tables import columns_of, dtype, shared_values
from resharpen.experiments.specs.schema import SLOTS, TABLES, WEIGHTS, Column
from resharpen.experiments.specs.spec import Experiment, Shard
from resharpen.lazy import pl
from resharpen.tasks.blocks import BLOCKS

ROUNDING = 1e-3
"""How far a value may lie outside the range of its metric: float32 sums over thousands of places."""
CELL = ["setting", "variant"]


@dataclass(frozen=True)
class Reader:
    """Reads tables of models of an experiment; ValueError for an invalid table."""

    experiment: Experiment
    further: tuple[Column, ...] = ()
    """Additional columns of `models`."""

    @cached_property
    def _cells(self) -> dict[tuple[str, str], tuple[tuple[Column, ...], dict[str, Any]]]:
        """(setting, variant) -> columns of `models`, and the values that all these models share."""
        cells = [(setting, variant) for setting in self.experiment.settings for variant in self.experiment.variants]
        return {
            (setting.name, variant): (
                columns_of(self.experiment, setting, variant),
                shared_values(self.experiment, setting, variant),
            )
            for setting, variant in cells
        }

    @cached_property
    def _tests(self) -> dict[tuple[str, str], list[int] | None]:
        """(setting, test) -> reported lengths; None for a user's task, which need not declare them."""
        found: dict[tuple[str, str], list[int] | None] = {}
        for setting in self.experiment.settings:
            for test in ("", *setting.task.tests):
                lengths = None if own.is_own(setting.task.kind) else setting.task.tested(test).reported_lengths
                found[setting.name, test] = None if lengths is None else list(lengths)
        return found

    def parse(self, name: str, data: bytes, shards: Sequence[Shard]) -> pl.DataFrame:
        """The declared columns of a Parquet file, in their order and types; `check` validates their values."""
        try:
            # threads slow down the reading of many small files
            table = pl.read_parquet(io.BytesIO(data), parallel="none" if len(shards) == 1 else "auto")
            return self._conform(table, self._columns(name, shards))
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            _check_polars()
            raise ValueError(_first_line(error)) from error

    def check(self, name: str, table: pl.DataFrame, shards: Sequence[Shard]) -> None:
        """ValueError for a table that training the models of these shards cannot produce."""
        self._check_values(table, self._columns(name, shards))
        keys = [column.name for column in TABLES[name] if column.key]
        if table.select(keys).n_unique() < table.height:
            row = table.filter(table.select(keys).is_duplicated()).select(keys).row(0)
            raise ValueError(f"it has two rows for {', '.join(map(str, row))}")
        models = _models(shards)
        if not (others := table.join(models, on="model", how="anti")).is_empty():
            raise ValueError(f"it has other models, such as {others['model'][0]}")
        metric = self.experiment.settings[0].task.metric
        needed = table.filter(metric=metric) if name == "lengths" else table
        if not (missing := models.join(needed, on="model", how="anti", maintain_order="left")).is_empty():
            raise ValueError(f"it has no {f'values of {metric} for ' * (name == 'lengths')}{missing['model'][0]}")
        rows = table.join(models, on="model", suffix="_there")
        {"models": self._check_models, "curves": self._check_curves, "lengths": self._check_lengths}[name](rows)

    def _columns(self, name: str, shards: Iterable[Shard]) -> list[Column]:
        if name != "models":
            return list(TABLES[name])
        cells = dict.fromkeys((shard.setting.name, shard.variant) for shard in shards)
        named = {column.name: column for cell in cells for column in self._cells[cell][0]}
        return [*named.values(), *self.further]

    def _conform(self, table: pl.DataFrame, columns: Sequence[Column]) -> pl.DataFrame:
        there, types = table.schema, {column.name: dtype(column) for column in columns}
        if list(there.items()) == list(types.items()):  # as it is written today
            return table
        for column in columns:
            if column.name in there:
                table = _cast(table, column)
            elif column.needed:
                raise ValueError(f"column '{column.name}' is missing")
        missing = {name: kind for name, kind in types.items() if name not in there}
        otherwise = {column.name: column.otherwise for column in columns}
        said = {column.name: missing[column.name] for column in columns if column.shared and column.name in missing}
        if said:
            rows = [[shared.get(name) for name in (*CELL, *said)] for _, shared in self._cells.values()]
            cells = pl.DataFrame(rows, dict.fromkeys(CELL, pl.String) | said, orient="row")
            table = table.join(cells, on=CELL, how="left", maintain_order="left")
        unsaid = [pl.lit(otherwise[name], kind).alias(name) for name, kind in missing.items() if name not in said]
        return table.with_columns(unsaid).select(column.name for column in columns)

    def _check_values(self, table: pl.DataFrame, columns: Iterable[Column]) -> None:
        rules = [(column, must, bad) for column in columns for must, bad in self._rules(column)]
        found = table.select(bad.sum().alias(str(i)) for i, (_, _, bad) in enumerate(rules)).row(0)
        for (column, must, bad), n in zip(rules, found, strict=True):
            if n:
                first = table.filter(bad).row(0, named=True)
                raise ValueError(f"{column.name} of {first['model']} is {first[column.name]!r}: it must be {must}")

    def _rules(self, column: Column) -> Iterator[tuple[str, pl.Expr]]:
        """What values of a column must be, and an expression for those that are not."""
        x, task = pl.col(column.name), self.experiment.settings[0].task
        if not column.null and not column.shared:  # shared values are compared with the spec
            yield "there", x.is_null()
        if column.kind is float:
            yield "a number", x.is_nan()
        if column.kind is list:
            known = x.list.eval(pl.element().is_finite().fill_null(False)).list.sum()
            yield f"{BLOCKS} finite numbers", (x.list.len() != BLOCKS) | (known != BLOCKS)
        if column.low is not None:
            yield f"at least {column.low}", x < column.low
        if column.allowed:
            yield " or ".join(column.allowed), ~x.is_in(list(column.allowed))
        if column.within == "steps":
            yield f"a step before {self.experiment.steps}", x >= self.experiment.steps
        elif column.within == "checkpoints":
            yield "a checkpoint", ~x.is_in(self.experiment.checkpoint_steps())
        elif column.within == "selecting":
            yield from _outside(x, task.metrics[task.metric].range)
        elif column.within == "metric":
            for name, metric in task.metrics.items():
                for must, bad in _outside(x, metric.range):
                    yield f"{must} for {name}", (pl.col("metric") == name) & bad
        elif column.kind is float:
            yield "finite", x.is_infinite()

    def _check_models(self, rows: pl.DataFrame) -> None:
        for name in ("draw", *CELL):
            _equal(rows, name, f"{name}_there")
        names = {name for _, values in self._cells.values() for name in values}
        shared = rows.select(name for name in rows.columns if name in names).unique(maintain_order=True)
        for row in shared.iter_rows(named=True):
            _, expected = self._cells[row["setting"], row["variant"]]
            for name, value in row.items():
                if value != (must := expected.get(name)):
                    where = f"{row['setting']}/{row['variant']}"
                    raise ValueError(f"{name} of {where} is {value!r}: it must be {must!r}, as in the spec")

    def _check_curves(self, rows: pl.DataFrame) -> None:
        """Rows are unique and have known weights and steps: a model with this many rows has all of them."""
        many = len(WEIGHTS) * len(self.experiment.checkpoint_steps())
        _equal(rows.with_columns(rows=pl.len().over("model"), all=pl.lit(many)), "rows", "all")

    def _check_lengths(self, rows: pl.DataFrame) -> None:
        cell = ["setting", "test"]
        tests = pl.DataFrame(
            [(*key, None if lengths is None else len(lengths)) for key, lengths in self._tests.items()],
            dict.fromkeys(cell, pl.String) | {"declared": pl.Int64},
            orient="row",
        )
        if not (others := rows.join(tests, on=cell, how="anti")).is_empty():
            raise ValueError(f"it has values of another test, {others['test'][0]!r}")
        task = self.experiment.settings[0].task
        there = rows.filter(metric=task.metric).select("model", *cell).unique(maintain_order=True)
        every = there.select("model", "setting").unique(maintain_order=True).join(tests, on="setting")
        if not (missing := every.join(there, on=["model", *cell], how="anti", maintain_order="left")).is_empty():
            raise ValueError(f"it has no values of test {missing['test'][0]!r} for {missing['model'][0]}")
        rows = rows.join(tests, on=cell, maintain_order="left")
        is_ours = pl.col("metric").is_in(list(task.metrics)) & pl.col("declared").is_not_null()
        lengths = pl.DataFrame(
            [(*key, length) for key, lengths in self._tests.items() for length in lengths or ()],
            dict.fromkeys(cell, pl.String) | {"length": pl.Int64},
            orient="row",
        )
        others = rows.filter(is_ours).join(lengths, on=[*cell, "length"], how="anti")
        if not others.is_empty():
            raise ValueError(f"it has other lengths, such as {others['length'][0]}")
        each = rows.group_by("model", *cell, "metric", "declared", maintain_order=True).agg(
            rows=pl.len().cast(pl.Int64), lengths=pl.col("length").n_unique().cast(pl.Int64)
        )
        many = pl.when(is_ours).then("declared").otherwise("lengths")
        _equal(each.with_columns(all=many * len(SLOTS)), "rows", "all")
        counts = rows.group_by("model", "test", "metric", "length").agg(
            pl.col("count").min(), other=pl.col("count").max()
        )
        _equal(counts, "count", "other")


def _models(shards: Sequence[Shard]) -> pl.DataFrame:
    """The models of shards, with setting, variant and draw from their ids."""
    models = [model for shard in shards for model in shard.model_ids]
    settings = [name for shard in shards for name in [shard.setting.name] * shard.count]
    variants = [name for shard in shards for name in [shard.variant] * shard.count]
    draws = [draw for shard in shards for draw in range(shard.first, shard.first + shard.count)]
    kinds = {"model": pl.String, "draw": pl.Int64, "setting": pl.String, "variant": pl.String}
    return pl.DataFrame([models, draws, settings, variants], kinds)


def _cast(table: pl.DataFrame, column: Column) -> pl.DataFrame:
    """Cast a column to its declared type; ValueError where that would change its values."""
    found, wanted = table.schema[column.name], dtype(column)
    if wanted in (found, pl.Unknown):
        return table
    width = (column.kind is int and found.is_integer()) or (column.kind is float and found.is_float())
    if not width and found != pl.Null:
        raise ValueError(f"column '{column.name}' is {found}, not {wanted}")
    return table.with_columns(pl.col(column.name).cast(wanted))


def _outside(x: pl.Expr, allowed: tuple[float, float] | None) -> Iterator[tuple[str, pl.Expr]]:
    if allowed is not None:
        low, high = allowed
        yield f"from {low:g} to {high:g}", (x < low - ROUNDING) | (x > high + ROUNDING)


def _equal(rows: pl.DataFrame, name: str, other: str) -> None:
    """ValueError unless two columns are the same."""
    different = rows.filter(rows[name].ne_missing(rows[other]))
    if not different.is_empty():
        first = different.row(0, named=True)
        raise ValueError(f"{name} of {first['model']} is {first[name]!r}: it must be {first[other]!r}")


def _check_polars() -> None:
    """Failed if polars cannot read any table here, for example because it cannot start threads. Then no table is
    damaged, and none must be deleted."""
    try:
        pl.read_parquet(io.BytesIO(files.parquet(pl.DataFrame({"x": [1]}))))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise Failed(f"polars cannot read tables here: {_first_line(error)}; nothing was deleted") from error


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
