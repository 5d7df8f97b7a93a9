"""Scores of stored models with another attention, without training."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from resharpen import objects, own
from resharpen.engines.choose import make_reader, measure_all, on_task
from resharpen.errors import UserError, unknown
from resharpen.experiments.keeping.machine import cores
from resharpen.experiments.keeping.store import Run
from resharpen.experiments.keeping.tables import lengths_table
from resharpen.experiments.specs.spec import Shard
from resharpen.experiments.specs.variant import Variant
from resharpen.lazy import pl
from resharpen.models.model import Misfit
from resharpen.parts import Attention, Parts, find_attention
from resharpen.state import SELECTIONS, WEIGHTS, arrays_of

Track = Callable[[Sequence[Shard]], Iterable[Shard]]
"""Iterates over shards and may show progress."""


def rescore(
    run: Run, attention: str | Attention, selection: str = "best", track: Track = iter, test: str = ""
) -> pl.DataFrame:
    """Rows as in the table `lengths`, with another attention instead of the trained one, on the task itself or on a
    further test. A variant whose attention has learned parameters, or acts on the output of the heads, is left out with
    a warning."""
    if not isinstance(attention, str):
        attention = objects.refer(attention)
    attention = own.refer(attention) if own.is_own(attention) else attention
    asked = find_attention(attention)  # raises for an unknown name before anything is read
    if learned := asked.parameters:
        raise UserError(f"'{own.short(attention)}' learns {', '.join(learned)}: models must be trained with it")
    if drawn := asked.hyperparameters:
        raise UserError(f"'{own.short(attention)}' draws {', '.join(drawn)}: models must be trained with it")
    if selection not in SELECTIONS:
        raise unknown("selection", selection, SELECTIONS)
    if not run.done():
        raise UserError(f"{run.directory} has no finished shard yet; continue it with: {run.command}")
    lost = {name: _lost(variant, asked) for name, variant in run.experiment.variants.items()}
    shards = [shard for shard in run.done() if not lost[shard.variant]]
    if not shards:
        why = lost[run.done()[0].variant]
        raise UserError(f"no finished variant of {run.directory} can be scored with '{asked.name}': {why}")

    def parts_of(shard: Shard) -> Parts:
        return shard.setting.parts_of(replace(run.experiment.variants[shard.variant], attention=attention))

    found = _rescore(run, {shard: parts_of(shard) for shard in shards}, selection, track, test)
    for name, why in ((name, why) for name, why in lost.items() if why):
        warnings.warn(f"variant '{name}' is left out: {why}", stacklevel=2)
    return found


def read_near(run: Run, selection: str = "best", track: Track = iter) -> pl.DataFrame:
    """Rows as in the table `lengths`, of training weights, with all keys masked that are further away than any key in
    training. Variants without attention, or which never attend to such keys, are left out."""
    read = {}
    for shard in run.done():
        setting, parts = shard.setting, shard.setting.parts_of(run.experiment.variants[shard.variant])
        trained, tokens = parts.attention, setting.task.input_tokens(setting.train_length)
        near = replace(parts, attention=replace(trained, window=tokens, reads_order=True))
        try:
            setting.model_of(run.experiment.variants[shard.variant]).check(near)
        except Misfit:
            continue
        if trained.window is None or trained.window > tokens:
            read[shard] = near
    if not read:
        raise UserError(f"no finished variant of {run.directory} attends to keys further away than in training")
    return _rescore(run, read, selection, track, which=("train",))


def _lost(variant: Variant, asked: Attention) -> str:
    """Parameters or outputs that models of a variant would lose with another attention; empty if none."""
    trained = find_attention(variant.attention)
    if trained is asked or not (trained.parameters or trained.output):
        return ""
    has = f"learned {', '.join(trained.parameters)}" if trained.parameters else "acts on the output of the heads"
    return f"{trained.name} {has}, which {asked.name} would drop"


def _rescore(
    run: Run,
    parts: Mapping[Shard, Parts],
    selection: str,
    track: Track,
    test: str = "",
    which: Iterable[str] = WEIGHTS,
) -> pl.DataFrame:
    """Shards in parallel threads: kernels and torch release the interpreter's lock."""
    with ThreadPoolExecutor(cores()) as pool:
        reading = {
            shard: pool.submit(_rescore_shard, run, shard, parts[shard], selection, test, which) for shard in parts
        }
        try:
            return pl.concat([reading[shard].result() for shard in track(list(parts))])
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _rescore_shard(
    run: Run, shard: Shard, parts: Parts, selection: str, test: str = "", which: Iterable[str] = WEIGHTS
) -> pl.DataFrame:
    experiment, kept = run.experiment, run.weights(shard)
    task = shard.setting.task.tested(test)
    problem, name = replace(experiment.problem(shard), parts=parts), str(experiment.variants[shard.variant].engine)
    engine = on_task(make_reader(name, problem, experiment.ensemble(shard)), task)
    report = task.validation(experiment.seed, "report")
    reported = {}
    for slot in (f"{weights}.{selection}" for weights in which):
        weights = arrays_of(kept, slot)
        kept_M = np.array([np.isfinite(row).all() for row in next(iter(weights.values()))])
        measured = measure_all(engine, weights, report)
        for metric, (length_S, value_MxS, n_S) in task.by_length(measured, report).items():
            reported[slot, metric] = length_S, np.where(kept_M[:, None], value_MxS, np.nan), n_S
    return lengths_table(shard, reported, test=test)
