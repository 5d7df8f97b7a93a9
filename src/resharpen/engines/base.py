"""The interface of engines, which advance an ensemble by n steps and measure it, and the state that they share.

The state of an ensemble is a flat dict of arrays with the model axis first:

    theta.E, theta.W_Q, ...    training weights              m.*, v.*          state of the optimizer, named by it
    theta_0.*                  initial weights               ema.*             moving average of the weights
    step [1]                   steps done                    diverged_at [M]   step of divergence, or -1
    loss [M]                   training loss, summed over all steps so far
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from resharpen import streams
from resharpen.errors import UserError
from resharpen.models import Model
from resharpen.optim.adamw import adamw
from resharpen.optim.bema import bema_weights
from resharpen.optim.hyperparameters import Draws
from resharpen.optim.optimizer import Optimizer
from resharpen.optim.schedule import Schedule
from resharpen.optim.schedules.linear import linear
from resharpen.parts import Parts
from resharpen.state import Arrays, Weights, arrays_of
from resharpen.tasks import Batch, Task, TokenTask

Batches = Sequence[Batch]
"""Given minibatches, one per step."""
Measures = dict[str, NDArray[np.float32]]
"""Measures by name, at every scored place, [M, P]."""


@dataclass(frozen=True)
class Problem:
    """Everything that the models of an ensemble share."""

    task: Task
    model: Model
    parts: Parts
    train_length: int
    batch: int
    steps: int
    seed: int
    optimizer: Optimizer = field(default=adamw)
    schedule: Schedule = field(default=linear)
    device: str = "cpu"
    march: str = "native"
    """The instruction set that native kernels are built for, as the compiler names it."""

    @property
    def setting(self) -> str:
        """Key of the random streams: independent of the variant, so that all variants see the same draws."""
        return setting_name(self.task, self.train_length)

    @property
    def batch_key(self) -> streams.Key:
        return streams.key(self.seed, self.setting, "batch")

    def minibatch(self, group: int, step: int) -> Batch:
        return self._checked(self.task.batch(self.batch_key, group, step, self.batch, self.train_length))

    def minibatches(self, group: int, first: int, n: int) -> list[Batch]:
        """Minibatches of n steps; sampled together if the task supports it, with the same bits."""
        if not isinstance(self.task, TokenTask) or type(self.task).batch is not TokenTask.batch:
            return [self.minibatch(group, first + i) for i in range(n)]
        steps_S = np.arange(first, first + n)
        drawn = self.task.batch(self.batch_key, group, steps_S, self.batch, self.train_length)
        return [self._checked(Batch(*of_step)) for of_step in zip(*(np.split(x, n) for x in drawn), strict=True)]

    def _checked(self, batch: Batch) -> Batch:
        if not batch.mask.any():  # the mean over no place is undefined
            raise UserError(f"task '{self.task.name}': a minibatch of {self.batch} sequences has no trained place")
        return batch


def lengths(mask_NxL: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Length of each row up to its last real position, [N]."""
    return np.where(mask_NxL.any(1), mask_NxL.shape[1] - mask_NxL[:, ::-1].argmax(1), 0)


def setting_name(task: Task, train_length: int) -> str:
    return f"{task.name}-s{train_length}"


@dataclass(frozen=True)
class Ensemble:
    """Draws of one group of sixteen, and their hyperparameters."""

    draw_M: NDArray[np.int64]
    hyperparameters: Draws

    def __post_init__(self) -> None:
        if len(set(self.draw_M // streams.GROUP)) != 1:
            raise ValueError("the draws of an ensemble must be from one group of sixteen")

    @property
    def group(self) -> int:
        return int(self.draw_M[0]) // streams.GROUP

    def some(self, models: Any) -> Ensemble:
        """Only these models."""
        return Ensemble(self.draw_M[models], {name: x_M[models] for name, x_M in self.hyperparameters.items()})


class Engine(Protocol):
    """`dump` and `load` are exact: advancing after a round trip gives the same bits."""

    problem: Problem
    ensemble: Ensemble

    @property
    def step(self) -> int: ...

    @property
    def built(self) -> str:
        """Code identity, and after an @ what determines rounding: results with equal strings are bitwise equal."""
        ...

    @property
    def diverged_at(self) -> NDArray[np.int64]:
        """The step of divergence of each model, or -1, [M]."""
        ...

    def advance(self, n: int, batches: Batches | None = None) -> None: ...

    def measure(self, weights: Arrays, validation: Any, report: bool = False) -> Measures:
        """The task's measures at every place of a validation set; for a report also statistics of the attention, if
        the model has them."""
        ...

    def dump(self) -> Arrays: ...

    def load(self, arrays: Arrays) -> None: ...


def initial_state(problem: Problem, ensemble: Ensemble) -> Arrays:
    problem.optimizer.check()  # names of its state must not clash with ours
    models = len(ensemble.draw_M)
    theta_0 = problem.model.initial(problem.seed, problem.setting, ensemble.draw_M, problem.parts)
    state: Arrays = {
        "step": np.zeros(1, np.int64),
        "diverged_at": np.full(models, -1, np.int64),
        "loss": np.zeros(models),
    }
    for name, array in theta_0.items():
        state |= {f"{kept}.{name}": array.copy() for kept in ("theta", "theta_0", "ema")}
        state |= {f"{kept}.{name}": np.zeros_like(array) for kept in problem.optimizer.state}
    return state


def weights_of(state: Arrays, ensemble: Ensemble, which: Weights) -> Arrays:
    """The weights used at inference: training weights or BEMA."""
    theta = arrays_of(state, "theta")
    if which == "train":
        return theta
    lag, power = ensemble.hyperparameters["ema_lag"], ensemble.hyperparameters["bema_power"]
    return {
        name: bema_weights(array, state[f"theta_0.{name}"], state[f"ema.{name}"], state["step"], lag, power)
        for name, array in theta.items()
    }
