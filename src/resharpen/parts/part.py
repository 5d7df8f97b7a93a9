"""What a variant is made of. A part is a function and what has to be declared of it:

    @rs.norm(g=rs.learned("d", start=1.0))
    def rms(x, p):
        return x * (x.square().mean(-1, keepdim=True) + p.rms_epsilon).rsqrt() * p.g

`p` holds by name what was declared, the learned parameters and the rows of the hyperparameter table, and every
hyperparameter that is drawn anyway; all are shaped to broadcast.

    norm(x, p)              x [M, ..., D] -> the same shape
    attention(e, mask, p)   e [M, N, H, Q, K] finite logits, mask true where a key is seen -> weights, 0 elsewhere;
                            p.n keys that a query sees [N, 1, Q, 1], p.x what queries are made from [M, N, Q, D]
    scale(p)                of an attention: what multiplies q . k, before positions add to it; broadcasts to e
    output(z, p)            of an attention: what the heads gathered, side by side [M, N, Q, d_heads], on its way to W_O
                            -> the same shape
    positions(x, p)         on="queries_keys": q or k [M, N, H, L, d_head] -> the same shape
    positions(e, p)         on="logits": e [M, N, H, L, L] -> the same shape

Shapes: M models, N sequences, H heads, Q queries, K keys, L positions, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from resharpen.declared import check_arguments, check_values, name_of, refuse_bare
from resharpen.errors import UserError, unknown
from resharpen.optim.hyperparameters import TABLE, Row
from resharpen.parts.parameter import Parameter
from resharpen.plain import typed

if TYPE_CHECKING:
    from torch import Tensor


# A part is itself and no other: two that are declared alike are two, and functions cannot be compared anyway.
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
                raise UserError(f"{self.name}: a learned parameter cannot be called '{name}': a hyperparameter is")

    def __call__(self, x: Any, *further: Any) -> Any:
        return self.kept_shape(x, self.function(x, *further))

    def kept_shape(self, x: Tensor, y: Any) -> Tensor:
        """What the function made of x; UserError if it has another shape, which might broadcast, or type."""
        if getattr(y, "shape", None) != x.shape or y.dtype != x.dtype:
            given = f"{list(y.shape)} {y.dtype}" if hasattr(y, "dtype") else f"a {type(y).__name__}"
            raise UserError(
                f"{self.name} must give what has the shape and type of {list(x.shape)} {x.dtype}, not {given}"
            )
        return y


@dataclass(frozen=True, eq=False)
class Norm(Part):
    pass


@dataclass(frozen=True, eq=False)
class Attention(Part):
    trains: bool = True
    """Whether it is one to train with; else only to read trained models with."""
    orders: bool = False
    """Whether it makes an order of the keys by itself: it needs one to begin with, and no positions besides."""
    output: Callable[..., Any] | None = None
    """What becomes of the heads' output, if anything."""
    scale: Callable[[Any], Any] | None = None
    """What multiplies q . k, if anything. Position biases are added afterwards and are not scaled: a factor on
    attention is not meant to change how far it looks."""
    softmax: bool = False
    """Whether the weights are `masked_softmax` of the logits and nothing else, after a scale that is the same for all
    keys of a query, if any: then torch's own attention computes them, without keeping all weights in memory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in (*self.parameters, *self.hyperparameters):
            if name in ("n", "x"):
                raise UserError(
                    f"{self.name}: '{name}' is taken: p.n are the keys that are seen, p.x is what reads them"
                )

    def scaled(self, e: Tensor, p: Any) -> Tensor:
        return e if self.scale is None else self.kept_shape(e, self.scale(p) * e)


@dataclass(frozen=True, eq=False)
class Positions(Part):
    on: Literal["queries_keys", "logits", "nothing"] = "queries_keys"


def norm(hyperparameters: Mapping[str, Row] | None = None, **parameters: Parameter) -> Callable[..., Norm]:
    """Declare a norm function; a learned parameter may have the sizes "d"."""
    refuse_bare("norm", hyperparameters)
    return lambda function: Norm(name_of(function, "norm", "x, p"), function, parameters, hyperparameters or {})


def attention(
    hyperparameters: Mapping[str, Row] | None = None,
    trains: bool = True,
    orders: bool = False,
    output: Callable[..., Any] | None = None,
    scale: Callable[[Any], Any] | None = None,
    softmax: bool = False,
    **parameters: Parameter,
) -> Callable[..., Attention]:
    """Declare an attention: from logits to weights. A learned parameter may have the sizes "heads", "d", "d_head" and
    "d_heads", all heads side by side; it is [M, 1, *shape, 1, ...] with as many axes as the logits, so one number
    per head broadcasts. With `softmax` the function is `masked_softmax(e, mask)`, and torch's own attention is used."""
    refuse_bare("attention", hyperparameters)
    for name, flag in (("trains", trains), ("orders", orders), ("softmax", softmax)):
        typed(f"{name} of @rs.attention", flag, bool)
    for name, further, arguments in (("output", output, "z, p"), ("scale", scale, "p")):
        if further is not None:
            check_arguments(further, arguments, f"{name} of @rs.attention is a function of ({arguments})")

    def declared(function: Callable[..., Any]) -> Attention:
        name = name_of(function, "attention", "e, mask, p")
        return Attention(name, function, parameters, hyperparameters or {}, trains, orders, output, scale, softmax)

    return declared


ON = {"queries_keys": "x, p", "logits": "e, p"}
"""What a position encoding may act on, and the arguments of its function."""


def positions(
    on: Literal["queries_keys", "logits"], hyperparameters: Mapping[str, Row] | None = None, **parameters: Parameter
) -> Callable[..., Positions]:
    """Declare a position encoding, on queries and keys or on attention logits; learned parameters as in attention."""
    refuse_bare("positions", on)
    if on not in ON:
        raise unknown("place of positions", str(on), ON)
    return lambda function: Positions(
        name_of(function, "positions", ON[on]), function, parameters, hyperparameters or {}, on
    )


def masked_softmax(e: Tensor, mask: Tensor) -> Tensor:
    """softmax over the keys that are seen; the others have no weight."""
    seen = e.where(mask, -float("inf"))
    if seen.stride(-1) == 1:
        return seen.softmax(-1)
    # written out, for keys that do not lie side by side in memory: torch's own would copy them until they do
    weight = (seen - seen.detach().amax(-1, keepdim=True)).exp()
    return weight / weight.sum(-1, keepdim=True)
