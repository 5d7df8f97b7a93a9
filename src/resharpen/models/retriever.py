"""The model of Maximum Retrieval: a single learned query attends to a set of items.

    h_i = psi(x_i)         psi = Linear(1 + C, d) GELU Linear(d, d)         x_i = (priority | one-hot class)
    e_i = q . K h_i        z = sum_i softmax(e)_i V h_i                     logits = phi(z)
                           phi = Linear(d, d) GELU Linear(d, C)

psi and phi have biases, K and V none, and e is not scaled by 1/sqrt(d). Of the five positions of a norm two exist:
`block_in` normalises h_i, for K and V alike, and `block_out` normalises z.

Shapes: M models, N sequences, L positions, D width, C classes. A matrix is [in, out] and acts as x W.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from resharpen.models.layers import Bound, Record, Tensors, attention_parameters, linear, norm_parameters
from resharpen.models.model import Model
from resharpen.parts import parameter
from resharpen.parts.attention.adaptive_temperature import entropy
from resharpen.parts.parameter import Parameter
from resharpen.parts.parts import Parts
from resharpen.parts.placement import Placement

if TYPE_CHECKING:
    from torch import Tensor

RETRIEVER_PLACEMENTS = {
    "none": Placement(),
    "pre": Placement(block_in=True),
    "post": Placement(block_out=True),
    "peri": Placement(block_in=True, block_out=True),
}


@dataclass(frozen=True)
class Retriever(Model):
    """Sizes of a retriever; by default the paper's."""

    hidden: int = 128
    classes: int = 10

    kind: ClassVar[str] = "retriever"
    reads: ClassVar[Literal["tokens", "items"]] = "items"
    placements: ClassVar[Mapping[str, Placement]] = RETRIEVER_PLACEMENTS

    def __post_init__(self) -> None:
        for name, least in (("hidden", 1), ("classes", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} = {getattr(self, name)}: at least {least}")

    @property
    def width(self) -> int:
        return self.hidden

    @classmethod
    def usual(cls, vocabulary: int) -> Retriever:
        return cls(classes=vocabulary)

    def check(self, parts: Parts) -> None:
        """A retriever has four placements and no others, and its items have no order."""
        if parts.placement not in RETRIEVER_PLACEMENTS.values():
            names = ", ".join(RETRIEVER_PLACEMENTS)
            raise ValueError(f"a retriever's placements are {names}: norms on h_i and on z only")
        if parts.positions.on != "nothing":
            raise ValueError("a retriever reads a set: its items have no positions; nope fits")

    def parameters(self, parts: Parts) -> dict[str, Parameter]:
        d, c = self.hidden, self.classes
        shapes = {"W_1": (1 + c, d), "W_2": (d, d), "K": (d, d), "V": (d, d), "q": (d,), "W_3": (d, d), "W_4": (d, c)}
        biases = {"b_1": d, "b_2": d, "b_3": d, "b_4": c}
        return {
            **{name: parameter.matrix(*shape) for name, shape in shapes.items()},
            **{name: parameter.bias(size) for name, size in biases.items()},
            **norm_parameters(parts, {position: position for position in ("block_in", "block_out")}, d),
            **attention_parameters(parts, "", {"heads": 1, "d": d}),
        }

    def logits(self, theta: Tensors, items: Any, parts: Parts, hyper: Tensors, record: Record | None = None) -> Tensor:
        """Class logits of every sequence, [M, N, C], from items.priority and .kind [N, L] and .length [N]."""
        bound = Bound(parts, theta, hyper, record)
        h_MxNxLxD = self._features(bound, theta, items)
        a_MxNxL = self._weights(bound, theta, items, h_MxNxLxD)
        z_MxNxD = (a_MxNxL[..., None, :] @ linear(h_MxNxLxD, theta["V"])).squeeze(-2)
        return mlp(bound.norm("block_out", z_MxNxD), theta, "3", "4")

    def dispersion(self, theta: Tensors, items: Any, parts: Parts, hyper: Tensors) -> dict[str, Tensor]:
        """Entropy in nats and largest weight of every sequence's attention, [M, N] each: dispersion itself."""
        bound = Bound(parts, theta, hyper)
        a_MxNxL = self._weights(bound, theta, items, self._features(bound, theta, items))
        return {"entropy": entropy(a_MxNxL), "largest_weight": a_MxNxL.amax(-1)}

    def _features(self, bound: Bound, theta: Tensors, items: Any) -> Tensor:
        """h_i of every item, after its norm if there is one, [M, N, L, D].

        Padding has no weight in what follows, but zero times NaN would be seen: it is read as priority 0, class 0.
        """
        import torch
        from torch.nn import functional

        real_NxL = real_items(items.length, items.kind.shape[1])
        one_hot_NxLxC = functional.one_hot(items.kind * real_NxL, self.classes).to(items.priority.dtype)
        priority_NxL = torch.where(real_NxL, items.priority, 0)
        x_NxLxF = torch.cat([priority_NxL[..., None], one_hot_NxLxC], dim=-1)
        x_MxNxLxF = x_NxLxF.expand(len(theta["W_1"]), *x_NxLxF.shape)
        return bound.norm("block_in", mlp(x_MxNxLxF, theta, "1", "2"))

    def _weights(self, bound: Bound, theta: Tensors, items: Any, h_MxNxLxD: Tensor) -> Tensor:
        """Attention weights of the items of every sequence, zero for padding, [M, N, L]."""
        e_MxNxL = linear(linear(h_MxNxLxD, theta["K"]), theta["q"][..., None])[..., 0]
        real_NxL = real_items(items.length, e_MxNxL.shape[-1])
        x_MxNx1xD = theta["q"][:, None, None].expand(-1, e_MxNxL.shape[1], -1, -1)
        a = bound.weights(
            e_MxNxL[:, :, None, None], real_NxL[:, None, None], items.length[:, None, None, None], x_MxNx1xD
        )
        return a[:, :, 0, 0]


def mlp(x: Tensor, theta: Tensors, first: str, second: str) -> Tensor:
    """Linear, exact (erf) GELU, Linear, with biases; [M, ..., in] to [M, ..., out]."""
    from torch.nn import functional

    hidden = functional.gelu(linear(x, theta[f"W_{first}"]) + bias(theta[f"b_{first}"], x.ndim))
    return linear(hidden, theta[f"W_{second}"]) + bias(theta[f"b_{second}"], x.ndim)


def bias(b_MxD: Tensor, ndim: int) -> Tensor:
    """A bias that broadcasts against activations with so many axes."""
    return b_MxD.view(len(b_MxD), *(1,) * (ndim - 2), -1)


def real_items(length_N: Tensor, positions: int) -> Tensor:
    """True for the items of a sequence, False for its padding, [N, L]."""
    import torch

    return torch.arange(positions, device=length_N.device) < length_N[:, None]
