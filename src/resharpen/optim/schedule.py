"""Numbers per step and model (learning rate, EMA weight, ...), in double precision, for both engines.

A schedule is a function that returns multipliers of the peak learning rate:

    @rs.schedule()
    def constant(t, p):
        return warmed_up(t, p, 1.0)

t are some steps, 1, 2, ..., [n, 1]; `p` contains the total number of steps, p.steps, and every hyperparameter, [M],
including p.warmup_steps and p.end_multiplier; arrays are NumPy's, in double. The result is [n, M].
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resharpen.errors import UserError
from resharpen.optim.hyperparameters import Draws, Row
from resharpen.optim.optimizer import Optimizer

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Schedule:
    name: str
    function: Callable[[Floats, Any], Any]
    hyperparameters: Mapping[str, Row] = field(default_factory=dict)

    def multipliers(self, draws: Draws, steps: int, t: Floats) -> Floats:
        """Multipliers of the peak learning rate at steps t [n, 1], [n, M]; UserError if they are invalid."""
        p = Drawn(**draws, steps=steps)
        shape, found = (len(t), len(next(iter(draws.values())))), self._called(t, p)
        if found.shape not in (shape, (len(t), 1)):
            raise UserError(f"schedule '{self.name}' returns {list(found.shape)}, not {list(shape)}: steps, models")
        if not (np.isfinite(found) & (found >= 0)).all():
            raise UserError(f"schedule '{self.name}' returns a multiplier that is negative or not finite")
        if not np.array_equal(self._called(t[-1:], p), found[-1:]):
            raise UserError(
                f"schedule '{self.name}' depends on which steps are computed together: it must be a function of t"
            )
        return np.broadcast_to(found, shape)

    def _called(self, t: Floats, p: Any) -> Floats:
        try:
            return np.asarray(self.function(t, p) + 0 * t, np.float64)
        except (TypeError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"schedule '{self.name}' fails for t of shape {list(t.shape)}: {error}") from error


class Drawn(SimpleNamespace):
    def __getattr__(self, name: str) -> Any:
        raise UserError(f"p.{name} does not exist; available: {', '.join(f'p.{name}' for name in sorted(vars(self)))}")


def schedule(hyperparameters: Mapping[str, Row] | None = None) -> Callable[..., Schedule]:
    """Declare a schedule."""
    return lambda function: Schedule(function.__name__.replace("_", "-"), function, hyperparameters or {})


def warmed_up(t: Floats, p: Any, then: Any) -> Floats:
    """t / W for the first W steps, W = p.warmup_steps, and `then` afterwards."""
    return np.where(t <= p.warmup_steps, t / np.maximum(1, p.warmup_steps), then)


def progress(t: Floats, p: Any, since: Any) -> Floats:
    """From 0 at the step after step `since` (for example W) to 1 at the last step.

    >>> progress(np.array([3.0, 4.0, 5.0]), SimpleNamespace(steps=5), 2).tolist()
    [0.0, 0.5, 1.0]
    """
    return (t - 1 - since) / np.maximum(1, p.steps - 1 - since)


def ema_weight(n: Floats, lag: Floats, power: Floats) -> Floats:
    """b_n = (rho + n)^-kappa, the weight of theta_{n+1} in the moving average."""
    return (lag + n) ** -power


def step_table(
    optimizer: Optimizer, schedule: Schedule, draws: Draws, steps: int, first: int, n: int
) -> dict[str, Floats]:
    """Numbers of the steps first .. first+n-1, each [n, M]: learning rate, the optimizer's columns, EMA weight."""
    step = np.arange(first, first + n, dtype=np.float64)[:, None]
    rate = draws["peak_learning_rate"] * schedule.multipliers(draws, steps, step + 1)
    columns = optimizer.columns(draws, step + 1)
    return {"lr": rate, **columns, "ema_weight": ema_weight(step, draws["ema_lag"], draws["ema_power"])}
