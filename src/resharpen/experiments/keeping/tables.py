"""The rows of a finished shard in the three tables of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resharpen.experiments.specs.schema import TABLES, Column, models_columns, step_column
from resharpen.experiments.specs.spec import Experiment, Setting, Shard
from resharpen.lazy import pl
from resharpen.metrics import ByLength
from resharpen.optim.hyperparameters import Draws
from resharpen.state import WEIGHTS

Reported = Mapping[tuple[str, str], ByLength]
"""(WEIGHTS.SELECTION, metric) -> values by length."""
Without = Mapping[tuple[str, str], NDArray[np.floating]]
"""(WEIGHTS.SELECTION, metric) -> values by length without each block of sequences, [M, lengths, blocks]."""


def models_table(
    experiment: Experiment,
    shard: Shard,
    hyperparameters: Draws,
    diverged_at_M: NDArray[np.int64],
    kept_step: Mapping[str, NDArray[np.int64]],
) -> pl.DataFrame:
    """One row per model: setting, variant, draw, hyperparameters, steps of the selected checkpoints, divergence."""
    same = shared_values(experiment, shard.setting, shard.variant)
    data = {name: [value] * shard.count for name, value in same.items()}
    data |= {"model": shard.model_ids, "draw": shard.draw_M, **hyperparameters, "diverged_at": _step(diverged_at_M)}
    data |= {step_column(slot): _step(at) for slot, at in kept_step.items()}
    return _frame(columns_of(experiment, shard.setting, shard.variant), data)


def columns_of(experiment: Experiment, setting: Setting, variant: str) -> tuple[Column, ...]:
    """Columns of `models` for a setting and variant."""
    chosen = experiment.variants[variant]
    return models_columns(_fields(setting.task, setting.model_of(chosen)), experiment.rows(chosen))


def shared_values(experiment: Experiment, setting: Setting, name: str) -> dict[str, Any]:
    """Column -> value that all models of a setting and variant share; models trained differently differ here."""
    variant = experiment.variants[name]
    model = setting.model_of(variant)
    return {
        "setting": setting.name,
        "task": setting.task.kind,
        "train_length": setting.train_length,
        "family": model.kind,
        "variant": name,
        **variant.columns(model),
        "steps": experiment.steps,
        "batch": experiment.batch,
        "seed": experiment.seed,
        "engine": variant.engine or experiment.engine,
        "device": experiment.device,
        **_fields(setting.task, model),
    }


def curves_table(
    shard: Shard, checkpoints: Sequence[int], score: Mapping[str, NDArray[np.float64]], loss_CxM: NDArray[np.float64]
) -> pl.DataFrame:
    """One row per model, weights and checkpoint: scores over all and over trained lengths, and the training loss."""
    pieces = [
        _frame(
            TABLES["curves"],
            {
                "model": np.repeat(shard.model_ids, len(checkpoints)),
                "weights": [which] * (shard.count * len(checkpoints)),
                "step": np.tile(np.asarray(checkpoints), shard.count),
                "score": _value(score[which].T.ravel()),
                "score_trained": _value(score[f"{which}.trained"].T.ravel()),
                "loss": _value(loss_CxM.T.ravel()),
            },
        )
        for which in WEIGHTS
    ]
    return pl.concat(pieces)


def lengths_table(shard: Shard, reported: Reported, without: Without | None = None, test: str = "") -> pl.DataFrame:
    """One row per model, weights, selection, metric and length: the value on the report set of a test, and without each
    block of its sequences where that is known."""
    pieces = []
    for (slot, metric), (length_S, value_MxS, n_S) in reported.items():
        which, selection = slot.split(".")
        rows = value_MxS.size
        columns = {
            "model": np.repeat(shard.model_ids, len(length_S)),
            "weights": [which] * rows,
            "selection": [selection] * rows,
            "test": [test] * rows,
            "length": np.tile(length_S, shard.count),
            "metric": [metric] * rows,
            "value": _value(value_MxS.ravel()),
            "count": np.tile(n_S, shard.count),
            "without": _lists((without or {}).get((slot, metric)), rows),
        }
        pieces.append(_frame(TABLES["lengths"], columns))
    return pl.concat(pieces)


def dtype(column: Column) -> pl.DataType | type[pl.DataType]:
    """Type of a column in the files; Unknown for a field of a user's task that is not a plain value."""
    kinds = {int: pl.Int64, float: pl.Float64, str: pl.String, bool: pl.Boolean, list: pl.List(pl.Float32)}
    return kinds.get(column.kind, pl.Unknown)


def _frame(columns: Sequence[Column], data: Mapping[str, Any]) -> pl.DataFrame:
    """The declared columns, in their order and types; a missing or undeclared column is an error."""
    types = {column.name: dtype(column) for column in columns}
    assert set(data) == set(types), set(data) ^ set(types)
    known = {name: kind for name, kind in types.items() if kind != pl.Unknown}
    return pl.DataFrame({name: data[name] for name in types}, schema_overrides=known)


def _fields(*things: Any) -> dict[str, Any]:
    """Fields of task and model, as columns; the spec has checked their types."""
    return {field.name: getattr(thing, field.name) for thing in things for field in fields(thing)}


def _lists(values_MxSxK: NDArray[np.floating] | None, rows: int) -> pl.Series:
    """One list per row, null unless all its values are known."""
    kind = pl.List(pl.Float32)
    if values_MxSxK is None:
        return pl.Series([None] * rows, dtype=kind)
    flat = values_MxSxK.reshape(rows, -1).astype(np.float32)
    return pl.Series([row.tolist() if np.isfinite(row).all() else None for row in flat], dtype=kind)


def _value(values: NDArray[np.floating]) -> pl.Series:
    """Values with null instead of nan."""
    return pl.Series(values).fill_nan(None)


def _step(step_M: NDArray[np.int64]) -> pl.Series:
    return pl.Series([None if step < 0 else int(step) for step in step_M], dtype=pl.Int64)
