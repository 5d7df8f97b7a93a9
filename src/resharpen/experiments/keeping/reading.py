"""What is accepted as a table, of runs and of references alike: the declared columns, with values that a training of
these models can leave. A right hash says that nothing changed by accident, not that it makes sense.

- Types are those of the schema; integers and floats of another width are cast, which loses nothing.
- A column that older tables do not have is filled in from the spec, or null: not recorded. Unknown ones are left out.
- Rows of unknown metrics stay, and nothing is drawn of them. Of the task's metrics the one that selects checkpoints has
  to be there; older tables may not have the others.
- Every model has all its rows, once, and no other model has any. A diverged model has null values; that is a result.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from resharpen import own
from resharpen.experiments.keeping.tables import columns_of, dtype, shared_values
from resharpen.experiments.specs.schema import SLOTS, TABLES, WEIGHTS, Column
from resharpen.experiments.specs.spec import Experiment, Shard
from resharpen.tasks.blocks import BLOCKS

if TYPE_CHECKING:
    import polars as pl

ROUNDING = 1e-3
"""How far a value may lie outside the range of its metric: single precision, summed over thousands of places."""
CELL = ["setting", "variant"]


@dataclass(frozen=True)
class Cell:
    """What the spec says of the models of one setting and variant."""

    columns: tuple[Column, ...]
    """Of `models`."""
    shared: dict[str, Any]
    lengths: list[int] | None
    """At which they are reported; None where the task is the user's own, which need not say."""


@dataclass(frozen=True)
class Reader:
    """Reads tables about models of an experiment; ValueError for what is not one."""

    experiment: Experiment
    further: tuple[Column, ...] = ()
    """Columns that `models` has in addition."""
    _cells: dict[tuple[str, str], Cell] = field(default_factory=dict, compare=False, repr=False)

    def parse(self, name: str, data: bytes, shards: Sequence[Shard]) -> pl.DataFrame:
        """The declared columns of a Parquet file, in their order and types; `check` looks at what is in them."""
        import polars as pl

        try:
            # for many small files threads are in the way
            table = pl.read_parquet(io.BytesIO(data), parallel="none" if len(shards) == 1 else "auto")
            return self._conform(table, self._columns(name, shards), shards)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise ValueError(str(error).partition("\n")[0]) from error

    def check(self, name: str, table: pl.DataFrame, shards: Sequence[Shard]) -> None:
        """ValueError for a table that no training of the models of these shards leaves."""
        self._check_values(table, self._columns(name, shards))
        keys = [column.name for column in TABLES[name] if column.key]
        if table.select(keys).n_unique() < table.height:
            row = table.filter(table.select(keys).is_duplicated()).select(keys).row(0)
            raise ValueError(f"it has two rows of {', '.join(map(str, row))}")
        models = _models(shards)
        if not (others := table.join(models, on="model", how="anti")).is_empty():
            raise ValueError(f"it has other models, such as {others['model'][0]}")
        rows = table.join(models, on="model", suffix="_there")
        {"models": self._check_models, "curves": self._check_curves, "lengths": self._check_lengths}[name](rows, shards)

    def _columns(self, name: str, shards: Iterable[Shard]) -> list[Column]:
        if name != "models":
            return list(TABLES[name])
        named = {column.name: column for cell in self._of(shards).values() for column in cell.columns}
        return [*named.values(), *self.further]

    def _of(self, shards: Iterable[Shard]) -> dict[tuple[str, str], Cell]:
        """(setting, variant) -> what the spec says of their models."""
        different = {(shard.setting.name, shard.variant): shard.setting for shard in shards}
        for (name, variant), setting in different.items():
            if (name, variant) not in self._cells:
                task, what = setting.task, (self.experiment, setting, variant)
                lengths = None if own.is_own(task.kind) else task.reported_lengths
                known = None if lengths is None else list(lengths)
                self._cells[name, variant] = Cell(columns_of(*what), shared_values(*what), known)
        return {key: self._cells[key] for key in different}

    def _conform(self, table: pl.DataFrame, columns: Sequence[Column], shards: Sequence[Shard]) -> pl.DataFrame:
        import polars as pl

        there, types = table.schema, {column.name: dtype(column) for column in columns}
        if list(there.items()) == list(types.items()):  # as it is written today
            return table
        for column in columns:
            if column.name in there:
                table = _cast(table, column)
            elif column.needed:
                raise ValueError(f"column '{column.name}' is missing")
        missing = {name: kind for name, kind in types.items() if name not in there}
        said = {column.name: missing[column.name] for column in columns if column.shared and column.name in missing}
        if said:
            rows = [[cell.shared.get(name) for name in (*CELL, *said)] for cell in self._of(shards).values()]
            cells = pl.DataFrame(rows, dict.fromkeys(CELL, pl.String) | said, orient="row")
            table = table.join(cells, on=CELL, how="left", maintain_order="left")
        unsaid = [pl.lit(None, kind).alias(name) for name, kind in missing.items() if name not in said]
        return table.with_columns(unsaid).select(column.name for column in columns)

    def _check_values(self, table: pl.DataFrame, columns: Iterable[Column]) -> None:
        rules = [(column, must, bad) for column in columns for must, bad in self._rules(column)]
        found = table.select(bad.sum().alias(str(i)) for i, (_, _, bad) in enumerate(rules)).row(0)
        for (column, must, bad), n in zip(rules, found, strict=True):
            if n:
                first = table.filter(bad).row(0, named=True)
                raise ValueError(f"{column.name} of {first['model']} is {first[column.name]!r}: it must be {must}")

    def _rules(self, column: Column) -> Iterator[tuple[str, pl.Expr]]:
        """What values of a column must be, and which are not."""
        import polars as pl

        x, task = pl.col(column.name), self.experiment.settings[0].task
        if not column.null and not column.shared:  # what is shared is compared with the spec
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

    def _check_models(self, rows: pl.DataFrame, shards: Sequence[Shard]) -> None:
        _all_there(rows, shards)
        for name in ("draw", *CELL):
            _equal(rows, name, f"{name}_there")
        cells = self._of(shards)
        shared = [column.name for column in self._columns("models", shards) if column.shared]
        for row in rows.select(shared).unique(maintain_order=True).iter_rows(named=True):
            expected = cells[row["setting"], row["variant"]].shared
            for name, value in row.items():
                if value != expected.get(name):
                    where = f"{row['setting']}/{row['variant']}"
                    raise ValueError(
                        f"{name} of {where} is {value!r}: it must be {expected.get(name)!r}, as in the spec"
                    )

    def _check_curves(self, rows: pl.DataFrame, shards: Sequence[Shard]) -> None:
        """No row is there twice, and all weights and steps are known: a model with this many has all."""
        import polars as pl

        many = len(WEIGHTS) * len(self.experiment.checkpoint_steps())
        _equal(rows.with_columns(rows=pl.len().over("model"), all=pl.lit(many)), "rows", "all")
        _all_there(rows, shards)

    def _check_lengths(self, rows: pl.DataFrame, shards: Sequence[Shard]) -> None:
        import polars as pl

        task = self.experiment.settings[0].task
        _all_there(rows.filter(metric=task.metric), shards, f"values of {task.metric} for ")
        known = {setting: cell.lengths for (setting, _), cell in self._of(shards).items() if cell.lengths is not None}
        said = pl.DataFrame(
            [(setting, length) for setting, lengths in known.items() for length in lengths],
            {"setting": pl.String, "length": pl.Int64},
            orient="row",
        )
        of_task = rows.filter(pl.col("metric").is_in(list(task.metrics)) & pl.col("setting").is_in(list(known)))
        if not (others := of_task.join(said, on=["setting", "length"], how="anti")).is_empty():
            raise ValueError(f"it has other lengths, such as {others['length'][0]}")
        each = rows.group_by("model", "setting", "metric", maintain_order=True).agg(
            rows=pl.len(), lengths=pl.col("length").n_unique()
        )
        each = each.join(said.group_by("setting").agg(said=pl.len()), on="setting", how="left", maintain_order="left")
        is_ours = pl.col("metric").is_in(list(task.metrics)) & pl.col("said").is_not_null()
        lengths = pl.when(is_ours).then("said").otherwise("lengths")
        _equal(
            each.with_columns(all=lengths.cast(pl.Int64) * len(SLOTS), rows=pl.col("rows").cast(pl.Int64)),
            "rows",
            "all",
        )
        counts = rows.group_by("model", "metric", "length").agg(pl.col("count").min(), other=pl.col("count").max())
        _equal(counts, "count", "other")


def _models(shards: Sequence[Shard]) -> pl.DataFrame:
    """The models that there are, and what their ids say."""
    import polars as pl

    return pl.DataFrame(
        {
            "model": [model for shard in shards for model in shard.model_ids],
            "draw": [int(draw) for shard in shards for draw in shard.draw_M],
            "setting": [shard.setting.name for shard in shards for _ in shard.draw_M],
            "variant": [shard.variant for shard in shards for _ in shard.draw_M],
        },
        {"model": pl.String, "draw": pl.Int64, "setting": pl.String, "variant": pl.String},
    )


def _cast(table: pl.DataFrame, column: Column) -> pl.DataFrame:
    """With a column as it is declared; ValueError where that would change its values."""
    import polars as pl

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


def _all_there(rows: pl.DataFrame, shards: Sequence[Shard], what: str = "") -> None:
    there = set(rows["model"])
    for model in (model for shard in shards for model in shard.model_ids):
        if model not in there:
            raise ValueError(f"it has no {what}{model}")


def _equal(rows: pl.DataFrame, name: str, other: str) -> None:
    """ValueError unless two columns are the same."""
    different = rows.filter(rows[name].ne_missing(rows[other]))
    if not different.is_empty():
        first = different.row(0, named=True)
        raise ValueError(f"{name} of {first['model']} is {first[name]!r}: it must be {first[other]!r}")
