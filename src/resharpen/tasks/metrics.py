"""Metrics that are functions of the exact next-token distribution p*, built in or defined by the user.

p is the model's distribution after a prefix. A place is determined where one token has p* = 1.

    tvd        1/2 sum |p - p*|                                        every place
    kl         sum p* log(p* / p), in nats, p floored at 1e-30         every place
    illegal    sum of p over the tokens with p* = 0                    every place
    error      1 where the most likely token is not the legal one      determined places
    exact      1 where no determined place so far has an error         sequences

    wrong_set  1 where the predicted set of legal tokens is wrong      every place
    sets       1 where no place so far has a wrong set                 sequences

The last two are measured where a spec asks for them, with `metrics = ["sets"]`. They ask which tokens may follow
(next-symbol sets), not how likely each one is. A token is predicted to be legal if its probability is at least half of
the least that a legal token has in this task: one threshold for all places, because a model that cannot tell two
places apart ranks the tokens correctly at both of them.

`tvd` is computed by `Task.score`, because engines score checkpoints by it. The others are measured once, on the weights
of the selected checkpoints. Your own metric is a function of p [M, P, V] and p* [P, V], torch tensors. It returns
[M, P], nan at places where it is undefined, which may depend on p* only:

    @rs.metric("probability of the likeliest token", range=(0, 1))
    def sharpness(p, p_star):
        return p.amax(-1)

Shapes: M models, N sequences, L positions, V tokens, P scored places.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import log

from resharpen.errors import UserError
from resharpen.lazy import Tensor

FLOOR = 1e-30
"""Lower bound on p in the logarithm of `kl`; representable in single precision."""
CERTAIN = 1 - 1e-6
"""A place is determined if a token has at least this p*: 1 up to rounding."""
CONFIDENT = 0.8
"""The share of all closing brackets' probability that the right one must have (Hewitt et al., 2020)."""


@dataclass(frozen=True)
class Metric:
    """Properties of a metric that figures and tables use."""

    label: str
    lower_is_better: bool = False
    worst: float = 0.0
    """The value of a model without values."""
    guess: float | None = None
    """The value of a random guess."""
    bin: int | None = None
    """Width of the bins of lengths, which are named by their ends; None for single lengths."""
    best: float | None = None
    """The best possible value, infinite if there is none; None: 0 where lower is better, otherwise 1."""
    range: tuple[float, float] | None = None
    """Range of all values, checked when results are written and read; None: unknown."""
    drawn: bool = True
    """Whether the figures of a run include it by default."""

    @property
    def bound(self) -> float:
        """The best possible value."""
        return self.best if self.best is not None else 0.0 if self.lower_is_better else 1.0

    @property
    def best_quantile(self) -> float:
        """The quantile over models that counts as best results."""
        return 0.1 if self.lower_is_better else 0.9


@dataclass(frozen=True, eq=False)
class PlaceMetric:
    """A function of p and p* at a place, and how to show it."""

    name: str
    function: Callable[[Tensor, Tensor], Tensor] = field(repr=False)
    about: Metric

    def __call__(self, p_MxPxV: Tensor, p_star_PxV: Tensor) -> Tensor:
        found, shape = self.function(p_MxPxV, p_star_PxV), list(p_MxPxV.shape[:-1])
        if list(getattr(found, "shape", ())) != shape:
            given = list(getattr(found, "shape", ())) or type(found).__name__
            raise UserError(f"metric '{self.name}' returns {given}, not {shape}: models, places")
        return found


def metric(
    label: str,
    lower_is_better: bool = False,
    worst: float | None = None,
    best: float | None = None,
    range: tuple[float, float] | None = None,
    drawn: bool = True,
) -> Callable[[Callable[[Tensor, Tensor], Tensor]], PlaceMetric]:
    """Declare a metric of p and p*. `worst` is the value of a diverged model: by default the worse end of `range`."""

    def declared(function: Callable[[Tensor, Tensor], Tensor]) -> PlaceMetric:
        name = function.__name__
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise UserError(f"metric '{name}': names of metrics may have lower-case letters, digits and '_'")
        if worst is None and range is None:
            raise UserError(f"metric '{name}' needs range=(low, high) or worst=, the value of a diverged model")
        low, high = range or (0.0, 0.0)
        last = worst if worst is not None else high if lower_is_better else low
        ends = None if range is None else (float(low), float(high))
        return PlaceMetric(name, function, Metric(label, lower_is_better, last, None, None, best, ends, drawn))

    return declared


@metric("KL divergence (nats)", lower_is_better=True, range=(0.0, -log(FLOOR)), drawn=False)
def kl(p: Tensor, p_star: Tensor) -> Tensor:
    """sum p* log(p* / p): the expected loss minus the entropy of p*."""
    return (p_star.xlogy(p_star) - p_star.xlogy(p.clamp(min=FLOOR))).sum(-1)


@metric("probability of illegal tokens", lower_is_better=True, range=(0.0, 1.0), drawn=False)
def illegal(p: Tensor, p_star: Tensor) -> Tensor:
    """sum of p over the tokens with p* = 0."""
    return (p * (p_star == 0)).sum(-1)


@metric("error rate at determined places", lower_is_better=True, range=(0.0, 1.0), drawn=False)
def error(p: Tensor, p_star: Tensor) -> Tensor:
    """1 where the most likely token, the first of equal ones, is not the one that is legal; nan where several are."""
    wrong = (p.argmax(-1) != p_star.argmax(-1)).to(p.dtype)
    return wrong.masked_fill(~determined(p_star) | p.isnan().any(-1), float("nan"))


def wrong_set(least: Callable[[], float]) -> PlaceMetric:
    """Next-symbol sets of a task in which legal tokens have at least the probability `least`, computed when needed."""

    @metric("places with a wrong next-symbol set", lower_is_better=True, range=(0.0, 1.0), drawn=False)
    def wrong_set(p: Tensor, p_star: Tensor) -> Tensor:
        """1 where some legal token has less than half of `least`, or some illegal token as much as that."""
        wrong = ((p >= least() / 2) != (p_star > 0)).any(-1)
        return wrong.to(p.dtype).masked_fill(p.isnan().any(-1), float("nan"))

    return wrong_set


METRICS: Mapping[str, PlaceMetric] = {known.name: known for known in (kl, illegal, error)}
"""Further metrics of every task with a p*, besides TVD."""
ON_REQUEST: Mapping[str, Callable[[Callable[[], float]], PlaceMetric]] = {"wrong_set": wrong_set}
"""Those that a spec has to ask for, as functions of the least probability of a legal token."""
TVD = Metric("TVD", lower_is_better=True, worst=1.0, range=(0.0, 1.0))
OF_SEQUENCES: Mapping[str, tuple[str, Metric]] = {
    "exact": ("error", Metric("exact match of determined tokens", range=(0.0, 1.0), drawn=False)),
    "sets": ("wrong_set", Metric("sequences with all next-symbol sets right", range=(0.0, 1.0), drawn=False)),
}
"""Metric of sequences -> the metric of places that must be 0 at every place so far."""


def determined(p_star_PxV: Tensor) -> Tensor:
    return p_star_PxV.amax(-1) > CERTAIN


def closing(first: int, end: int) -> PlaceMetric:
    """Accuracy of Hewitt et al. (2020) for brackets that close with the tokens first .. end-1."""

    @metric("accuracy of closing brackets", range=(0.0, 1.0), drawn=False)
    def closing(p: Tensor, p_star: Tensor) -> Tensor:
        """1 where the right closing bracket has more than 0.8 of the probability of all; nan where none is legal."""
        p, p_star = p[..., first:end], p_star[..., first:end]
        right = (p * (p_star > 0)).sum(-1)
        confident = (right > CONFIDENT * p.sum(-1)).to(p.dtype)
        return confident.masked_fill((p_star == 0).all(-1) | p.isnan().any(-1), float("nan"))

    return closing
