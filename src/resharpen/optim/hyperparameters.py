"""The random search: the distribution of every hyperparameter, and its draws.

Draw i of hyperparameter `name` depends only on (seed, setting, i, name), so it is the same for every variant and does
not change when a run is extended or when another row is fixed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from resharpen import streams
from resharpen.errors import UserError, unknown
from resharpen.plain import shown, typed

Draws = dict[str, NDArray[np.float64]]
"""Name of a hyperparameter -> its values, [M] doubles."""


@dataclass(frozen=True)
class Row:
    """10^U[log10 low, log10 high], rounded down with `floor`; or U[low, high] if linear. low = high fixes it."""

    low: float
    high: float
    scale: Literal["log", "linear"] = "log"
    floor: bool = False
    at_most: float = np.inf
    may_be_zero: bool = False

    def __post_init__(self) -> None:
        low, high = (typed(f"{end} of a Row", getattr(self, end), float) for end in ("low", "high"))
        if self.scale not in ("log", "linear"):
            raise unknown("scale of a Row", str(self.scale), ("log", "linear"))
        if not (np.isfinite(low) and np.isfinite(high) and low <= high):
            raise UserError(f"Row({low:g}, {high:g}): must be low <= high, both finite")
        if self.scale == "log" and low <= 0 and low != high:
            raise UserError(f'Row({low:g}, {high:g}): must be above 0, or have scale="linear"')

    def value(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.low == self.high:
            x = np.full_like(u, self.low)
        elif self.scale == "linear":
            x = self.low + (self.high - self.low) * u
        else:
            low, high = np.log10(self.low), np.log10(self.high)
            x = 10.0 ** (low + (high - low) * u)
        return np.floor(x) if self.floor else x


TABLE: Mapping[str, Row] = {
    "rms_epsilon": Row(1e-10, 1e-4),
    "one_minus_beta1": Row(1e-2, 1.0, at_most=1.0),
    "one_minus_beta2": Row(1e-5, 1e-1, at_most=1.0),
    "weight_decay": Row(1e-6, 1.0, may_be_zero=True),
    "adam_epsilon": Row(1e-12, 1e-8),
    "max_gradient_norm": Row(1e-2, 1e2),
    "peak_learning_rate": Row(1e-5, 1e-2),
    "warmup_steps": Row(1e-2, 1e4, floor=True, may_be_zero=True),
    "end_multiplier": Row(1e-4, 1.0, at_most=1.0, may_be_zero=True),
    "bema_power": Row(0.0, 1.0, scale="linear", may_be_zero=True),
    "ema_power": Row(0.0, 1.0, scale="linear", may_be_zero=True),
    "ema_lag": Row(1.0, 1e10),
}
"""Hyperparameters of every model; a part may add rows, or change the range of one of these. 1 - beta is stored instead
of beta, because float32 has few digits of beta near one."""
Given = Row | float | tuple[float, float]
"""A row in a spec: another Row, a number to fix it, or (low, high) to narrow it in its own scale."""


def narrowed(name: str, value: Given, row: Row | None = None) -> Row:
    """The row `name` as set in a spec, checked against the row's bounds."""
    row = row or TABLE[name]
    scale, floor = (value.scale, value.floor) if isinstance(value, Row) else (row.scale, row.floor)
    ends = (value.low, value.high) if isinstance(value, Row) else value
    low, high = ends if isinstance(ends, tuple) else (ends, ends)
    may_be_zero, least = row.may_be_zero or row.low <= 0, min(row.low, 0.0)  # the row itself may start below 0
    fits = low > 0 or (may_be_zero and low >= least and (low == high or scale == "linear"))
    if not (fits and low <= high <= row.at_most and np.isfinite(high)):
        bounds = f"{least:g} {'<=' if may_be_zero else '<'} low <= high"
        bounds += f" <= {row.at_most:g}" if np.isfinite(row.at_most) else ""
        raise UserError(f"{name} = {shown(ends)}: allowed are a number or [low, high] with {bounds}")
    return replace(row, low=float(low), high=float(high), scale=scale, floor=floor)


def draw(rows: Mapping[str, Row], seed: int, setting: str, draw_M: NDArray[np.int64]) -> Draws:
    """The hyperparameters of the given draws."""
    return {
        name: row.value(streams.uniforms(streams.key(seed, setting, "draw", name), 1, draw_M)[:, 0])
        for name, row in rows.items()
    }
