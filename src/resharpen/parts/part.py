"""Parts of a variant. A part is a function with declarations:

    @rs.norm(g=rs.learned("d", start=1.0))
    def rms(x, p):
        return x * (x.square().mean(-1, keepdim=True) + p.rms_epsilon).rsqrt() * p.g

`p` contains by name the declared learned parameters and rows of the hyperparameter table, and all other hyperparameters
of the model, in shapes that broadcast. It also contains

    p.training              whether this is a training step; the following exist in training only
    p.t, p.steps            the current step, 1, 2, ..., and the total number of steps
    p.lengths               tokens of each sequence, padding left out, [N]
    p.uniform(*shape)       random numbers in [0, 1), [M, N, *shape], different at every step and call; with shared=True
                            the same for all sequences, [M, 1, *shape]; in positions the same in all blocks

    norm(x, p)              x [M, ..., D] -> the same shape
    attention(e, mask, p)   e [M, N, H, Q, K] finite logits, mask true for visible keys -> weights, 0 elsewhere;
                            p.n visible keys per query [N, 1, Q, 1], p.x input of the queries [M, N, Q, D]
    scale(p)                of an attention: factor of q . k, before position biases are added; broadcasts to e
    output(z, p)            of an attention: concatenated outputs of the heads [M, N, Q, d_heads], before W_O
                            -> the same shape
    positions(q, k, p)      on="queries_keys": q and k [M, N, H, L, d_head] -> both in the same shape
    positions(e, p)         on="logits": e [M, N, H, L, L] -> the same shape
    positions(x, p)         on="embedding": x [M, N, L, D], the embedding -> the same shape
    dropout(x, p)           in training only; on="weights": attention weights [M, N, H, Q, K] -> the same shape;
                            on="block_out": output of a block [M, N, L, D] -> the same shape

Shapes: M models, N sequences, H heads, Q queries, K keys, L positions, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pickle import PicklingError
from typing import Any, Literal

from resharpen.declared import check_arguments, check_values, name_of, refuse_bare
from resharpen.errors import UserError, unknown
from resharpen.lazy import Tensor
from resharpen.optim.hyperparameters import TABLE, Row
from resharpen.parts.parameter import Parameter
from resharpen.parts.placement import SITES
from resharpen.plain import typed

ALWAYS = ("training", "t", "steps", "lengths", "uniform")
"""Attributes that `p` has in every part: no parameter or hyperparameter of a part may have these names."""


# Parts are compared by identity, because functions cannot be compared.
@dataclass(frozen=True, eq=False)
class Part:
    name: str
    function: Callable[..., Any]
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    hyperparameters: Mapping[str, Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_values(self.name, "parameters", self.parameters, Parameter, "rs.learned(...)")
        check_values(self.name, "hyperparameters", self.hyperparameters, Row, "rs.Row(low, high)")
        for name in self.parameters:
            if name in (*TABLE, *self.hyperparameters):
                raise UserError(
                    f"{self.name}: a learned parameter cannot be called '{name}': a hyperparameter has this name"
                )
        for name in (*self.parameters, *self.hyperparameters):
            if name in ALWAYS:
                raise UserError(f"{self.name}: '{name}' is reserved: every part has p.{', p.'.join(ALWAYS)}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by name, like functions."""
        module = self.function.__module__
        names = [name for name, x in vars(import_module(module)).items() if x is self]
        if not names:
            raise PicklingError(f"{self.name} is not defined at the top of its file")
        return _defined, (module, names[0])

    def __call__(self, x: Any, *further: Any) -> Any:
        return self.kept_shape(x, self.function(x, *further))

    def kept_shape(self, x: Tensor, y: Any) -> Tensor:
        """The result of the function on x; UserError if its shape, which might broadcast, or type differs."""
        if getattr(y, "shape", None) != x.shape or y.dtype != x.dtype:
            given = f"{list(y.shape)} {y.dtype}" if hasattr(y, "dtype") else f"a {type(y).__name__}"
            raise UserError(f"{self.name} must return the shape and type {list(x.shape)} {x.dtype}, not {given}")
        return y


@dataclass(frozen=True, eq=False)
class Norm(Part):
    sites: tuple[str, ...] = SITES
    """Sites at which it may be used."""


@dataclass(frozen=True, eq=False)
class Attention(Part):
    trains: bool = True
    """Whether models are trained with it; otherwise they are trained with softmax and only scored with it."""
    orders: bool = False
    """Whether it encodes the order of the keys itself: it needs ordered inputs and no further positions."""
    reads_order: bool = False
    """Whether weights depend on the order of the keys, so that it cannot be used on sets. Positions may be added."""
    output: Callable[..., Any] | None = None
    """Optional function of the output of the heads."""
    scale: Callable[[Any], Any] | None = None
    """Optional factor of q . k. Position biases are added afterwards and are not scaled, so that the factor does not
    change the range of attention."""
    softmax: bool = False
    """Whether the weights are exactly `masked_softmax` of the logits, after an optional scale that is the same for all
    keys of a query: then torch's attention computes them, without storing all weights."""
    window: int | None = None
    """Number of visible keys per query, the last one its own; None: all up to its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in (*self.parameters, *self.hyperparameters):
            if name in ("n", "x"):
                raise UserError(
                    f"{self.name}: '{name}' is reserved: p.n is the number of visible keys, p.x the query input"
                )

    def scaled(self, e: Tensor, p: Any) -> Tensor:
        return e if self.scale is None else self.kept_shape(e, self.scale(p) * e)


@dataclass(frozen=True, eq=False)
class Positions(Part):
    on: Literal["queries_keys", "logits", "embedding", "nothing"] = "queries_keys"
    by_length: bool = False
    """Whether it depends on the task's longest input, which the task must then define."""

    def turned(self, q: Tensor, k: Tensor, p: Any) -> tuple[Tensor, Tensor]:
        """Queries and keys with positions applied."""
        found = self.function(q, k, p)
        if not (isinstance(found, tuple) and len(found) == 2):
            raise UserError(f"{self.name} acts on queries and keys: it must return both, as (q, k)")
        return self.kept_shape(q, found[0]), self.kept_shape(k, found[1])


@dataclass(frozen=True, eq=False)
class Dropout(Part):
    """A function of activations that is applied in training only."""

    on: tuple[str, ...] = ("weights", "block_out")


def norm(
    hyperparameters: Mapping[str, Row] | None = None, sites: tuple[str, ...] = SITES, **parameters: Parameter
) -> Callable[..., Norm]:
    """Declare a norm function, optionally for some sites only; the shape of a learned parameter may contain "d"."""
    refuse_bare("norm", hyperparameters)
    if strange := [site for site in sites if site not in SITES]:
        raise unknown("site of a norm", strange[0], SITES)
    return lambda function: Norm(name_of(function, "norm", "x, p"), function, parameters, hyperparameters or {}, sites)


def attention(
    hyperparameters: Mapping[str, Row] | None = None,
    trains: bool = True,
    orders: bool = False,
    reads_order: bool = False,
    output: Callable[..., Any] | None = None,
    scale: Callable[[Any], Any] | None = None,
    softmax: bool = False,
    window: int | None = None,
    **parameters: Parameter,
) -> Callable[..., Attention]:
    """Declare an attention: from logits to weights. The shape of a learned parameter may contain "heads", "pairs" (of
    heads), "d", "d_head" and "d_heads" (all heads concatenated). It gets the shape [M, 1, *shape, 1, ...] with as many
    axes as the logits, so one number per head broadcasts. `softmax` declares that the function is
    `masked_softmax(e, mask)`, so that torch's attention is used. `window` is the number of visible keys per query, the
    last one its own."""
    refuse_bare("attention", hyperparameters)
    for name, flag in (("trains", trains), ("orders", orders), ("reads_order", reads_order), ("softmax", softmax)):
        typed(f"{name} of @rs.attention", flag, bool)
    if window is not None and typed("window of @rs.attention", window, int) < 1:
        raise UserError(f"window of @rs.attention = {window}: must be at least 1")
    for name, further, arguments in (("output", output, "z, p"), ("scale", scale, "p")):
        if further is not None:
            check_arguments(further, arguments, f"{name} of @rs.attention is a function of ({arguments})")

    def declared(function: Callable[..., Any]) -> Attention:
        name = name_of(function, "attention", "e, mask, p")
        order = orders, orders or reads_order or window is not None
        return Attention(
            name, function, parameters, hyperparameters or {}, trains, *order, output, scale, softmax, window
        )

    return declared


ON = {"queries_keys": "q, k, p", "logits": "e, p", "embedding": "x, p"}
"""What a position encoding may act on -> the arguments of its function."""


def positions(
    on: Literal["queries_keys", "logits", "embedding"],
    hyperparameters: Mapping[str, Row] | None = None,
    by_length: bool = False,
    **parameters: Parameter,
) -> Callable[..., Positions]:
    """Declare a position encoding, on queries and keys, on attention logits or on the embedding. Learned parameters are
    as in attention, one per block; on the embedding as in a norm, one per model. With `by_length` there are p.longest,
    the tokens of the longest input of the task, and p.drawn_from, four times that; both may also be used as sizes."""
    refuse_bare("positions", on)
    if on not in ON:
        raise unknown("place of positions", str(on), ON)
    return lambda function: Positions(
        name_of(function, "positions", ON[on]), function, parameters, hyperparameters or {}, on, by_length
    )


def dropout(
    hyperparameters: Mapping[str, Row] | None = None, on: tuple[str, ...] = ("weights", "block_out")
) -> Callable[..., Dropout]:
    """Declare a dropout: a function of attention weights, of block outputs, or of both, applied in training only."""
    refuse_bare("dropout", hyperparameters)
    allowed = ("weights", "block_out")
    if isinstance(on, str) or not on or any(place not in allowed for place in on):
        raise UserError(f"on = {on!r}: must be a tuple of {', '.join(allowed)}")
    return lambda function: Dropout(name_of(function, "dropout", "x, p"), function, {}, hyperparameters or {}, on)


def _defined(module: str, name: str) -> Part:
    return getattr(import_module(module), name)


def masked_softmax(e: Tensor, mask: Tensor) -> Tensor:
    """softmax over the visible keys; the others have weight 0."""
    seen = e.where(mask, -float("inf"))
    if seen.stride(-1) == 1:
        return seen.softmax(-1)
    # written out, because torch's softmax would copy keys that are not contiguous in memory
    weight = (seen - seen.detach().amax(-1, keepdim=True)).exp()
    return weight / weight.sum(-1, keepdim=True)
