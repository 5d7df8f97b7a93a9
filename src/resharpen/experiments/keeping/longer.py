"""More steps for a run that has begun: only where it then ends with the same bits as if it had been that long at first.

So the schedule up to where each shard is must not change (constant; wsd before its decay), nor may the checkpoints:
their number grows with the steps. A finished shard goes on from its last state, which is kept where its schedule allows
that.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from resharpen import own
from resharpen.engines.base import Problem
from resharpen.engines.choose import compiles
from resharpen.errors import UserError
from resharpen.experiments.keeping import files
from resharpen.experiments.specs.spec import Experiment
from resharpen.optim.hyperparameters import Draws
from resharpen.state import Arrays

if TYPE_CHECKING:
    from resharpen.experiments.keeping.store import Run

READ_STEPS = ("norm", "attention", "positions", "dropout")
"""Kinds of parts that know the number of steps."""
STEPS_AT_ONCE = 2**14


def same_rates(problem: Problem, draws: Draws, steps: int, up_to: int) -> bool:
    """Whether learning rates up to a step are the same with another number of steps."""
    for first in range(0, up_to, STEPS_AT_ONCE):
        t = np.arange(first + 1.0, min(first + STEPS_AT_ONCE, up_to) + 1)[:, None]
        a, b = (problem.schedule.multipliers(draws, n, t) for n in (problem.steps, steps))
        if not np.array_equal(a, b):
            return False
    return True


def longer(old: Experiment, new: Experiment) -> Experiment:
    """The new experiment with so many checkpoints that those of the old one are among them; UserError if none has."""
    refuse = f"steps {old.steps:,} -> {new.steps:,}"
    if new.models != old.models:
        raise UserError(f"{refuse}: raise --models and --steps one after the other")
    if old.checkpoints >= old.steps:
        checkpoints = max(old.checkpoints, new.steps)
    elif old.checkpoints * new.steps % old.steps:
        apart = f"checkpoints are {old.steps / old.checkpoints:g} steps apart"
        multiple = old.steps // math.gcd(old.steps, old.checkpoints)
        raise UserError(f"{refuse}: {apart}; take a multiple of {multiple:,} steps")
    else:
        checkpoints = old.checkpoints * new.steps // old.steps
    for name, variant in new.variants.items():
        parts = [getattr(variant, kind) for kind in READ_STEPS] + [norm for _, norm in variant.norm_at]
        if reading := [part for part in parts if part and own.is_own(part)]:
            raise UserError(f"{refuse}: '{own.short(reading[0])}' of variant '{name}' may depend on p.steps")
    return replace(new, checkpoints=checkpoints)


def states(run: Run, new: Experiment) -> dict[str, Arrays]:
    """Shard -> its state as a longer run has it; UserError for one that cannot go on."""
    old, found = run.experiment, {}
    refuse = f"steps {old.steps:,} -> {new.steps:,}"
    for shard in run.shards():
        where, problem = run.files(shard), old.problem(shard)
        if where.is_leased():
            raise UserError(f"{refuse}: {shard.name} is being trained; wait for it, or stop it")
        try:
            arrays = where.final() if where.is_done() else where.saved()
        except files.TornFile as error:
            raise UserError(f"{refuse}: {error}; take another --out") from error
        if arrays is None and not where.is_done():
            continue  # not begun
        # Where even the state is missing the schedule is the reason: else it would have been kept.
        step = old.steps if arrays is None else int(arrays["state.step"][0])
        if not same_rates(problem, old.ensemble(shard).hyperparameters, new.steps, step):
            raise UserError(
                f"{refuse}: the schedule '{problem.schedule.name}' of {shard.variant} depends on the number of steps, "
                f"and {shard.name} is at step {step:,}; take another --out, or 'constant' next time"
            )
        if arrays is None:
            raise UserError(f"{refuse}: {shard.name} was finished without keeping its state; take another --out")
        engine = str(old.variants[shard.variant].engine)
        if compiles(engine, problem) != compiles(engine, replace(problem, steps=new.steps)):
            raise UserError(f"{refuse}: torch compiles long runs, whose last bits differ; take another --out")
        found[shard.name] = _grown(arrays, len(new.checkpoint_steps()))
    return found


def _grown(arrays: Arrays, checkpoints: int) -> Arrays:
    """With room for the scores of more checkpoints, and without a last one."""
    grown = {}
    for name, array in arrays.items():
        if name == "kept_loss" or name.startswith("score."):
            array = np.concatenate([array, np.full((checkpoints - len(array), *array.shape[1:]), np.nan)])
        elif name.startswith("kept_step.") and name.endswith(".last"):
            array = np.full_like(array, -1)
        elif name.startswith("kept.") and name.split(".")[2] == "last":
            array = np.full_like(array, np.nan)
        grown[name] = array
    return grown
