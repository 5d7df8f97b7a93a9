"""The kept models of a run, read with another attention: a remedy that needs no training."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from resharpen import own
from resharpen.engines.base import Engine, part
from resharpen.engines.choose import make_engine, why_not_native
from resharpen.errors import UserError, unknown
from resharpen.experiments.keeping.store import Run
from resharpen.experiments.keeping.tables import lengths_table
from resharpen.experiments.running.training import SELECTIONS, WEIGHTS
from resharpen.experiments.specs.spec import Experiment, Shard
from resharpen.parts import find_attention

if TYPE_CHECKING:
    import polars as pl


def rescore(run: Run, attention: str, selection: str = "best") -> pl.DataFrame:
    """Rows like those of the table `lengths`, with the attention weights of a remedy in place of the trained ones."""
    import polars as pl

    attention = own.refer(attention) if own.is_own(attention) else attention
    if learned := find_attention(attention).parameters:  # and a misspelt name says so before anything is read
        raise UserError(f"'{own.short(attention)}' learns {', '.join(learned)}: models have to be trained with it")
    if selection not in SELECTIONS:
        raise unknown("selection", selection, SELECTIONS)
    if not run.done():
        raise UserError(f"{run.directory} has no finished shard yet; continue it with: {run.command}")
    return pl.concat([_rescore_shard(run, shard, attention, selection) for shard in run.done()])


def _rescore_shard(run: Run, shard: Shard, attention: str, selection: str) -> pl.DataFrame:
    experiment, kept = run.experiment, run.weights(shard)
    engine, task = _reader(experiment, shard, attention), shard.setting.task
    report = task.validation(experiment.seed, "report")
    reported = {}
    for slot in (f"{which}.{selection}" for which in WEIGHTS):
        weights = part(kept, slot)
        kept_M = np.array([np.isfinite(row).all() for row in next(iter(weights.values()))])
        measured = engine.measure(weights, report, report=True)
        for metric, (length_S, value_MxS, n_S) in task.by_length(measured, report).items():
            reported[slot, metric] = length_S, np.where(kept_M[:, None], value_MxS, np.nan), n_S
    return lengths_table(shard, reported)


def _reader(experiment: Experiment, shard: Shard, attention: str) -> Engine:
    """An engine that reads with the remedy: native where the run is and its kernel knows it."""
    variant, problem = experiment.variants[shard.variant], experiment.problem(shard)
    problem = replace(problem, parts=replace(variant, attention=attention).parts(problem.model))
    native = variant.engine == "native" and not why_not_native(problem, training=False)
    return make_engine("native" if native else "torch", problem, experiment.ensemble(shard))
