"""Optimizers: named state, and an update of one tensor.

    @rs.optimizer(state=("m",), hyperparameters={"peak_learning_rate": rs.Row(1e-3, 10.0)})
    def sgd(theta, g, state, p):
        m = (1 - p.one_minus_beta1) * state["m"] + g
        return theta - p.lr * (m + p.decay * theta), {"m": m}

g is the clipped gradient of each model's loss. `p` contains the scheduled learning rate `lr`, the weight decay `decay`
(zero for a tensor without decay), the step `t` = 1, 2, ..., every hyperparameter, and the columns that the optimizer
declares; all broadcast against theta [M, ...]. `p.inner` is whether theta is a matrix between hidden features (not
available if the optimizer is elementwise). Schedule, clipping, moving average and the treatment of divergence are the
same for all optimizers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resharpen.declared import check_values, name_of, refuse_bare
from resharpen.errors import UserError
from resharpen.optim.hyperparameters import Draws, Row

Floats = NDArray[np.float64]
Columns = Callable[[Draws, Floats], dict[str, Floats]]
"""Hyperparameters [M] and steps t [n, 1] -> columns that the update needs, by name, [n, M], in double."""
TAKEN = ("theta", "theta_0", "ema", "state", "step", "loss", "diverged_at")
"""Names in the state of an ensemble, or of a run, that are independent of the optimizer."""


def no_columns(draws: Draws, t: Floats) -> dict[str, Floats]:
    return {}


@dataclass(frozen=True, eq=False)
class Optimizer:
    name: str
    update: Callable[..., tuple[Any, dict[str, Any]]]
    state: tuple[str, ...] = ()
    """Names of its state per tensor, which starts at zero."""
    hyperparameters: Mapping[str, Row] = field(default_factory=dict)
    columns: Columns = no_columns
    elementwise: bool = False
    """Whether an update is elementwise: then one call updates all parameters of a model, concatenated."""

    def check(self) -> None:
        """UserError for names of its state that are invalid, or that the state of an ensemble already has."""
        names = self.state
        if not (isinstance(names, tuple | list) and all(isinstance(x, str) and x.isidentifier() for x in names)):
            raise UserError(f"optimizer '{self.name}': state = {names!r}: must be a tuple of names, such as ('m',)")
        if taken := [name for name in names if name in TAKEN or names.count(name) > 1]:
            others = f"every name once, and none of {', '.join(TAKEN)}"
            raise UserError(f"optimizer '{self.name}': its state cannot have the name '{taken[0]}': {others}")

    def updated(self, theta: Any, g: Any, state: Mapping[str, Any], p: Any) -> dict[str, Any]:
        """The new weights, as `theta`, and the new state, which must be exactly what was declared."""
        found: Any = self.update(theta, g, state, p)
        if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping)):
            raise UserError(f"optimizer '{self.name}': an update must return the new theta and a dict of the new state")
        theta, kept = found
        if set(kept) != set(self.state):
            declared, found = (", ".join(map(str, names)) or "nothing" for names in (self.state, kept))
            raise UserError(f"optimizer '{self.name}' declares the state {declared} but returns {found}")
        new = {"theta": theta, **kept}
        if odd := [name for name, x in new.items() if getattr(x, "shape", None) != g.shape or x.dtype != g.dtype]:
            raise UserError(f"optimizer '{self.name}' returns {odd[0]} with a different shape or type than theta")
        return new


def optimizer(
    state: tuple[str, ...] = (),
    hyperparameters: Mapping[str, Row] | None = None,
    columns: Columns = no_columns,
    elementwise: bool = False,
) -> Callable[..., Optimizer]:
    """Declare an optimizer."""
    refuse_bare("optimizer", state)

    def declared(update: Callable[..., Any]) -> Optimizer:
        name = name_of(update, "optimizer", "theta, g, state, p")
        check_values(name, "hyperparameters", hyperparameters or {}, Row, "rs.Row(low, high)")
        return Optimizer(name, update, state, hyperparameters or {}, columns, elementwise)

    return declared
