"""What an engine is: it advances an ensemble by n steps and measures it. Two engines, one state, the same results.

The state of an ensemble is a flat dict of arrays with the model axis first:

    theta.E, theta.W_Q, ...    the training weights          m.*, v.*    what the optimizer keeps, by its own names
    theta_0.*                  the initial weights           ema.*       the moving average
    step [1]                   steps done                    diverged_at [M]   step of divergence, or -1
    loss [M]                   the training loss, summed over all steps so far
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from resharpen import streams
from resharpen.models import Model
from resharpen.models.initial import initial_weights
from resharpen.optim.adamw import adamw
from resharpen.optim.bema import bema_weights
from resharpen.optim.hyperparameters import Draws
from resharpen.optim.optimizer import Optimizer
from resharpen.parts import Parts
from resharpen.state import Arrays, Weights, arrays_of
from resharpen.tasks import Batch, Task

Batches = Sequence[Batch]
"""Given minibatches, one per step."""
Measures = dict[str, NDArray[np.float32]]
"""What was measured at every scored place, by name, [M, P]."""


@dataclass(frozen=True)
class Problem:
    """What an ensemble is trained on: everything that its models share."""

    task: Task
    model: Model
    parts: Parts
    train_length: int
    batch: int
    steps: int
    seed: int
    optimizer: Optimizer = field(default=adamw)
    device: str = "cpu"
    march: str = "native"
    """The instruction set that native kernels are built for, by the compiler's name of it."""

    @property
    def setting(self) -> str:
        """What the random streams go by: nothing of the variant, so that all variants see the same draws."""
        return setting_name(self.task, self.train_length)

    @property
    def batch_key(self) -> streams.Key:
        return streams.key(self.seed, self.setting, "batch")

    def minibatch(self, group: int, step: int) -> Batch:
        return self.task.batch(self.batch_key, group, step, self.batch, self.train_length)


def setting_name(task: Task, train_length: int) -> str:
    return f"{task.name}-s{train_length}"


@dataclass(frozen=True)
class Ensemble:
    """Draws of one group, and their hyperparameters."""

    draw_M: NDArray[np.int64]
    hyperparameters: Draws

    def __post_init__(self) -> None:
        if len(set(self.draw_M // streams.GROUP)) != 1:
            raise ValueError("an ensemble takes its draws from one group of sixteen")

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
        """What computes, and behind an @ how it rounds: where all of it is the same, so is every bit."""
        ...

    @property
    def diverged_at(self) -> NDArray[np.int64]:
        """The step of divergence of each model, or -1, [M]."""
        ...

    def advance(self, n: int, batches: Batches | None = None) -> None: ...

    def measure(self, weights: Arrays, validation: Any, report: bool = False) -> Measures:
        """What the task scores, at every place of a validation set; for a report also what the model tells of its
        attention, where it does."""
        ...

    def dump(self) -> Arrays: ...

    def load(self, arrays: Arrays) -> None: ...


def initial_state(problem: Problem, ensemble: Ensemble) -> Arrays:
    problem.optimizer.check()  # its names are about to stand beside ours
    models = len(ensemble.draw_M)
    parameters = problem.model.parameters(problem.parts)
    theta_0 = initial_weights(problem.seed, problem.setting, ensemble.draw_M, parameters)
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
    """The weights that are read at inference: the training weights, or BEMA."""
    theta = arrays_of(state, "theta")
    if which == "train":
        return theta
    lag, power = ensemble.hyperparameters["ema_lag"], ensemble.hyperparameters["bema_power"]
    return {
        name: bema_weights(array, state[f"theta_0.{name}"], state[f"ema.{name}"], state["step"], lag, power)
        for name, array in theta.items()
    }
