"""Extend a run to more steps: only if the result has the same bits as a run started with this number of steps.

So the learning rates of completed steps must not change (constant; wsd before its decay), nor the existing checkpoints:
their number grows with the steps. A finished shard continues from its last state, which is stored if its schedule
allows this.
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
from resharpen.experiments.keeping.shard import FINAL, STATE
from resharpen.experiments.specs.spec import Experiment
from resharpen.optim.hyperparameters import Draws
from resharpen.state import Arrays

if TYPE_CHECKING:
    from resharpen.experiments.keeping.store import Run

READ_STEPS = ("norm", "attention", "positions", "dropout")
"""Kinds of parts that may depend on the number of steps."""
STEPS_AT_ONCE = 2**14


def same_rates(problem: Problem, draws: Draws, steps: int, up_to: int) -> bool:
    """Whether learning rates up to a step are the same with another total number of steps."""
    for first in range(0, up_to, STEPS_AT_ONCE):
        t = np.arange(first + 1.0, min(first + STEPS_AT_ONCE, up_to) + 1)[:, None]
        a, b = (problem.schedule.multipliers(draws, n, t) for n in (problem.steps, steps))
        if not np.array_equal(a, b):
            return False
    return True


def longer(old: Experiment, new: Experiment) -> Experiment:
    """The new experiment with enough checkpoints to include those of the old one; UserError if that is impossible."""
    refuse = f"steps {old.steps:,} -> {new.steps:,}"
    if new.models != old.models:
        raise UserError(f"{refuse}: increase --models and --steps in two separate commands")
    if old.checkpoints >= old.steps:
        checkpoints = max(old.checkpoints, new.steps)
    elif old.checkpoints * new.steps % old.steps:
        apart = f"checkpoints are {old.steps / old.checkpoints:g} steps apart"
        multiple = old.steps // math.gcd(old.steps, old.checkpoints)
        raise UserError(f"{refuse}: {apart}; use a multiple of {multiple:,} steps")
    else:
        checkpoints = old.checkpoints * new.steps // old.steps
    for name, variant in new.variants.items():
        parts = [getattr(variant, kind) for kind in READ_STEPS] + [norm for _, norm in variant.norm_at]
        if reading := [part for part in parts if part and own.is_own(part)]:
            raise UserError(f"{refuse}: '{own.short(reading[0])}' of variant '{name}' may depend on p.steps")
    return replace(new, checkpoints=checkpoints)


def states(run: Run, new: Experiment) -> dict[str, Arrays]:
    """Shard -> its state in a run with more steps; UserError for a shard that cannot continue."""
    old, found = run.experiment, {}
    refuse = f"steps {old.steps:,} -> {new.steps:,}"
    for shard in run.shards():
        where, problem = run.files(shard), old.problem(shard)
        if where.is_leased():
            raise UserError(f"{refuse}: {shard.name} is being trained; wait until it has finished, or stop it")
        try:
            arrays = where.saved(FINAL if where.is_done() else STATE)
        except files.TornFile as error:
            raise UserError(f"{refuse}: {error}; choose another --out") from error
        if arrays is None and not where.is_done():
            continue  # not started
        # If there is no state either, the schedule is the reason: otherwise the state would have been stored.
        step = old.steps if arrays is None else int(arrays["state.step"][0])
        if not same_rates(problem, old.ensemble(shard).hyperparameters, new.steps, step):
            raise UserError(
                f"{refuse}: the schedule '{problem.schedule.name}' of {shard.variant} depends on the number of steps, "
                f"and {shard.name} is at step {step:,}; choose another --out, or use the schedule 'constant'"
            )
        if arrays is None:
            raise UserError(f"{refuse}: {shard.name} was finished without storing its state; choose another --out")
        engine = str(old.variants[shard.variant].engine)
        if compiles(engine, problem) != compiles(engine, replace(problem, steps=new.steps)):
            raise UserError(f"{refuse}: torch compiles long runs, so the last bits would differ; choose another --out")
        found[shard.name] = _grown(arrays, len(new.checkpoint_steps()))
    return found


def _grown(arrays: Arrays, checkpoints: int) -> Arrays:
    """The arrays extended for more checkpoints, without the selection `last`."""
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
