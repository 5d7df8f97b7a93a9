"""What an engine is: it advances an ensemble by n steps and evaluates it. Two engines, one state, the same results.

The state of an ensemble is a flat dict of arrays with the model axis first:

    theta.E, theta.W_Q, ...    the training weights          m.*, v.*    the moments of AdamW
    theta_0.*                  the initial weights           ema.*       the moving average
    step [1]                   steps done                    diverged_at [M]   step of divergence, or -1
    loss [M]                   training loss, in double, summed over the steps before divergence
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from resharpen import streams
from resharpen.models import Model, Placement
from resharpen.models.initial import initial_weights
from resharpen.optim.bema import bema_weights
from resharpen.optim.hyperparameters import Draws
from resharpen.tasks import Task

Arrays = dict[str, NDArray]
Batch = tuple[NDArray, ...]
"""What a task's `batch` gives and its model's `loss` takes: inputs [N, L] and targets [N, L], for tokens."""
Batches = Sequence[Batch]
"""Given minibatches, one a step."""
Weights = Literal["train", "bema"]

ATTENTION = ("entropy", "largest_weight")
"""What `examine` tells of attention: its entropy in nats, and its largest weight."""
GROUP = 16
"""Consecutive draws that see the same minibatches; the lanes of a vector in the native engine."""


@dataclass(frozen=True)
class Problem:
    """What an ensemble is trained on: everything that its models share."""

    task: Task
    model: Model
    placement: Placement
    train_length: int
    batch: int
    steps: int
    seed: int
    setting: str
    """The name of task, training length and model sizes that keys the random streams."""
    attention: str = "softmax"
    """The name of an attention remedy."""

    @property
    def batch_key(self) -> streams.Key:
        return streams.key(self.seed, self.setting, "batch")

    def minibatch(self, group: int, step: int) -> Batch:
        return self.task.batch(self.batch_key, group, step, self.batch, self.train_length)


@dataclass(frozen=True)
class Ensemble:
    """Draws of one group, and their hyperparameters."""

    draw_M: NDArray[np.int64]
    hyperparameters: Draws

    def __post_init__(self) -> None:
        if len(set(self.draw_M // GROUP)) != 1:
            raise ValueError("an ensemble takes its draws from one group of sixteen")

    @property
    def group(self) -> int:
        return int(self.draw_M[0]) // GROUP


class Engine(Protocol):
    """`dump` and `load` are exact: advancing after a round trip gives the same bits."""

    problem: Problem
    ensemble: Ensemble

    @property
    def step(self) -> int:
        """Steps done."""
        ...

    @property
    def diverged_at(self) -> NDArray[np.int64]:
        """The step of divergence of each model, or -1."""
        ...

    def advance(self, n: int, batches: Batches | None = None) -> None: ...

    def evaluate(self, weights: Arrays, validation: Any) -> NDArray[np.float32]:
        """The score of every example of a validation set, [M, P]: TVD of prefixes, or right and wrong answers."""
        ...

    def examine(self, weights: Arrays, validation: Any) -> tuple[NDArray[np.float32], dict[str, NDArray[np.float32]]]:
        """The scores, and what else there is to tell of every example, by name, [M, P] each: for the report."""
        ...

    def dump(self) -> Arrays: ...

    def load(self, arrays: Arrays) -> None: ...


def initial_state(problem: Problem, ensemble: Ensemble) -> Arrays:
    theta_0 = initial_weights(
        problem.seed,
        problem.setting,
        ensemble.draw_M,
        problem.model.matrices(),
        problem.model.gains(problem.placement),
        problem.model.biases(),
    )
    n_models = len(ensemble.draw_M)
    state: Arrays = {"step": np.zeros(1, np.int64), "diverged_at": np.full(n_models, -1), "loss": np.zeros(n_models)}
    for name, array in theta_0.items():
        state |= {f"{part}.{name}": array.copy() for part in ("theta", "theta_0", "ema")}
        state |= {f"{part}.{name}": np.zeros_like(array) for part in ("m", "v")}
    return state


def part(state: Arrays, name: str) -> Arrays:
    """The arrays of one part of a state, `theta` for example, without the prefix."""
    return {key.removeprefix(f"{name}."): array for key, array in state.items() if key.startswith(f"{name}.")}


def weights_of(state: Arrays, ensemble: Ensemble, which: Weights) -> Arrays:
    """The weights that are read at inference: the training weights, or BEMA."""
    theta = part(state, "theta")
    if which == "train":
        return theta
    lag, power = ensemble.hyperparameters["ema_lag"], ensemble.hyperparameters["bema_power"]
    return {
        name: bema_weights(array, state[f"theta_0.{name}"], state[f"ema.{name}"], state["step"], lag, power)
        for name, array in theta.items()
    }
