"""The rows that a finished shard adds to the three tables of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from resharpen.experiments.specs.spec import Experiment, Shard
from resharpen.metrics import ByLength
from resharpen.optim.hyperparameters import Draws

if TYPE_CHECKING:
    import polars as pl

Reported = Mapping[tuple[str, str], ByLength]
"""(WEIGHTS.SELECTION, metric) -> values by length."""


def models_table(
    experiment: Experiment,
    shard: Shard,
    hyperparameters: Draws,
    diverged_at_M: NDArray[np.int64],
    kept_step: Mapping[str, NDArray[np.int64]],
) -> pl.DataFrame:
    """One row per model: what it is, every hyperparameter, the steps of the kept checkpoints, divergence."""
    import polars as pl

    same = shared_columns(experiment, shard)
    steps = {f"{slot.replace('.', '_').replace('-', '_')}_step": _step(at) for slot, at in kept_step.items()}
    return pl.DataFrame(
        {"model": shard.model_ids, "draw": shard.draw_M}
        | {name: [value] * shard.count for name, value in same.items()}
        | hyperparameters
        | {"diverged_at": _step(diverged_at_M)}
        | steps
    )


def shared_columns(experiment: Experiment, shard: Shard) -> dict[str, Any]:
    """What the models of a shard have in common: rows that were trained differently differ here."""
    setting, variant = shard.setting, experiment.variants[shard.variant]
    model = setting.model_of(variant)
    return {
        "setting": setting.name,
        "task": setting.task.kind,
        "train_length": setting.train_length,
        "family": model.kind,
        "variant": shard.variant,
        **variant.columns(model),
        "steps": experiment.steps,
        "batch": experiment.batch,
        "seed": experiment.seed,
        "engine": variant.engine or experiment.engine,
        "device": experiment.device,
        **_fields(setting.task),  # which the spec let in: see its COLUMNS
        **_fields(model),
    }


def curves_table(
    shard: Shard, checkpoints: Sequence[int], score: Mapping[str, NDArray[np.float64]], loss_CxM: NDArray[np.float64]
) -> pl.DataFrame:
    """One row per model, kind of weights and checkpoint: the score over all lengths and over trained ones, and the mean
    training loss since the checkpoint before."""
    import polars as pl

    pieces = [
        pl.DataFrame(
            {
                "model": np.repeat(shard.model_ids, len(checkpoints)),
                "weights": [which] * (shard.count * len(checkpoints)),
                "step": np.tile(np.asarray(checkpoints), shard.count),
                "score": _value(score[which].T.ravel()),
                "score_trained": _value(score[f"{which}.trained"].T.ravel()),
                "loss": _value(loss_CxM.T.ravel()),
            }
        )
        for which in score
        if "." not in which
    ]
    return pl.concat(pieces)


def lengths_table(shard: Shard, reported: Reported) -> pl.DataFrame:
    """One row per model, kind of weights, selection, metric and length: the value on the report set."""
    import polars as pl

    pieces = []
    for (slot, metric), (length_S, value_MxS, n_S) in reported.items():
        which, selection = slot.split(".")
        rows = value_MxS.size
        pieces.append(
            pl.DataFrame(
                {
                    "model": np.repeat(shard.model_ids, len(length_S)),
                    "weights": [which] * rows,
                    "selection": [selection] * rows,
                    "length": np.tile(length_S, shard.count),
                    "metric": [metric] * rows,
                    "value": _value(value_MxS.ravel()),
                    "count": np.tile(n_S, shard.count),
                }
            )
        )
    return pl.concat(pieces)


def _fields(thing: Any) -> dict[str, Any]:
    """The numbers and texts of a dataclass, as columns."""
    return {field.name: getattr(thing, field.name) for field in fields(thing)}


def _value(values: NDArray[np.floating]) -> pl.Series:
    """Numbers with null for what does not exist."""
    import polars as pl

    return pl.Series(values).fill_nan(None)


def _step(step_M: NDArray[np.int64]) -> pl.Series:
    import polars as pl

    return pl.Series([None if step < 0 else int(step) for step in step_M], dtype=pl.Int64)
