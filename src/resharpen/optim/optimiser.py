"""What an optimiser is: named state, where it starts, and an update of one tensor; the rest is the engine's.

    @rs.optimiser(state=("m",), hyperparameters={"peak_learning_rate": rs.Row(1e-3, 10.0)})
    def sgd(theta, g, state, p):
        m = (1 - p.one_minus_beta1) * state["m"] + g
        return theta - p.lr * (m + p.decay * theta), {"m": m}

g is the gradient of each model's own loss, clipped. `p` holds the scheduled learning rate `lr`, the weight decay
`decay` (zero for a tensor that is spared), the number of the step `t` = 1, 2, ..., every hyperparameter, and the
columns that the optimiser declares; all are shaped to broadcast against theta [M, ...]. `p.inner` says whether theta is
a matrix between hidden features, unless the optimiser is elementwise. Schedule, clipping, moving average and divergence
are the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resharpen.errors import UserError
from resharpen.optim.hyperparameters import Draws, Row

Floats = NDArray[np.float64]
Columns = Callable[[Draws, Floats], dict[str, Floats]]
"""Hyperparameters [M] and numbers of steps t [n, 1] -> what the update needs of them, by name, [n, M], in double."""


def no_columns(draws: Draws, t: Floats) -> dict[str, Floats]:
    return {}


@dataclass(frozen=True, eq=False)
class Optimiser:
    name: str
    update: Callable[..., tuple[Any, dict[str, Any]]]
    state: tuple[str, ...] = ()
    """What it keeps of every tensor; starts at zero."""
    hyperparameters: Mapping[str, Row] = field(default_factory=dict)
    columns: Columns = no_columns
    elementwise: bool = False
    """Whether an update looks at each number by itself: then one call serves all tensors of a model, side by side."""


def optimiser(
    state: tuple[str, ...] = (),
    hyperparameters: Mapping[str, Row] | None = None,
    columns: Columns = no_columns,
    elementwise: bool = False,
) -> Callable[..., Optimiser]:
    """Declare an optimiser."""
    if taken := {"theta", "theta_0", "ema", "state", "step"} & set(state):
        raise UserError(
            f"an optimiser's state cannot be called '{taken.pop()}': what every model has goes by that name"
        )

    def declared(update: Callable[..., Any]) -> Optimiser:
        name = update.__name__.replace("_", "-")

        @wraps(update)
        def checked(theta: Any, g: Any, kept: Mapping[str, Any], p: Any) -> tuple[Any, dict[str, Any]]:
            given = update(theta, g, kept, p)
            if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], dict)):
                raise UserError(f"{name} must give a pair: theta, and its state by name")
            if set(given[1]) != set(state):
                raise UserError(f"{name} keeps {sorted(given[1])}, and declares {sorted(state)} as its state")
            for x in (given[0], *given[1].values()):
                if getattr(x, "shape", None) != theta.shape or x.dtype != theta.dtype:
                    raise UserError(f"{name} must give theta and its state in the shape and type of theta")
            return given

        return Optimiser(name, checked, state, hyperparameters or {}, columns, elementwise)

    return declared
