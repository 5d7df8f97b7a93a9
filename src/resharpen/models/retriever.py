"""The model of Maximum Retrieval: a single learned query attends to a set of items.

    h_i = psi(x_i)         psi = Linear(1 + C, d) GELU Linear(d, d)         x_i = (priority | one-hot class)
    e_i = q . K h_i        z = sum_i softmax(e)_i V h_i                     logits = phi(z)
                           phi = Linear(d, d) GELU Linear(d, C)

psi and phi have biases, K and V none, and e is not scaled by 1/sqrt(d). Of the sites of a norm two exist:
`block_in` normalizes h_i, for K and V alike, and `block_out` normalizes z.

Shapes: M models, N sequences, L positions, D width, C classes. A matrix is [in, out] and acts as x W.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from resharpen.lazy import Tensor
from resharpen.models.layers import Bound, Record, Tensors, attention_parameters, norm_parameters
from resharpen.models.model import Misfit, Model, check_norm
from resharpen.parts import parameter
from resharpen.parts.attention.adaptive_temperature import entropy
from resharpen.parts.parameter import Parameter
from resharpen.parts.parts import Parts
from resharpen.parts.placement import SITES, Placement

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
        """A retriever has only four placements, its items have no order, and its query has no input."""
        check_norm(parts)
        if parts.placement not in RETRIEVER_PLACEMENTS.values():
            raise Misfit("placement", "a retriever can have norms only on h_i and on z")
        for part in {parts.norm, *dict(parts.norm_at).values()}:
            if part.sites != SITES:
                raise Misfit(
                    "norm", f"{part.name} scales the output of a block, but a retriever has no residual stream"
                )
        if parts.positions.on != "nothing":
            raise Misfit("positions", "a retriever reads a set: its items have no positions")
        if parts.attention.reads_order:
            raise Misfit("attention", f"{parts.attention.name} needs an order, but a retriever reads a set")
        if "pairs" in {size for x in parts.attention.parameters.values() for size in x.shape}:
            raise Misfit("attention", f"{parts.attention.name} needs pairs of heads, but a retriever has one head")
        if parts.attention.output is not None:
            name = parts.attention.name
            raise Misfit("attention", f"{name} depends on the input of the query, but a retriever's query has none")

    def parameters(self, parts: Parts) -> dict[str, Parameter]:
        d, c = self.hidden, self.classes
        shapes = {"W_1": (1 + c, d), "W_2": (d, d), "K": (d, d), "V": (d, d), "q": (d,), "W_3": (d, d), "W_4": (d, c)}
        biases = {"b_1": d, "b_2": d, "b_3": d, "b_4": c}
        return {
            **{name: parameter.matrix(*shape) for name, shape in shapes.items()},
            **{name: parameter.outer(*shapes[name]) for name in ("W_1", "W_4")},
            **{name: parameter.bias(size) for name, size in biases.items()},
            **norm_parameters(parts, {"": ("block_in", "block_out")}, {"d": d}),
            **attention_parameters(parts, "", {"heads": 1, "d": d}),
        }

    def logits(self, theta: Tensors, items: Any, parts: Parts, hyper: Tensors, record: Record | None = None) -> Tensor:
        """Class logits of every sequence, [M, N, C], from items.priority and .kind [N, L] and .length [N]."""
        bound = Bound(parts, theta, hyper, record)
        real_NxL = real_items(items.length, items.kind.shape[1])
        h_MxIxD = self._features(bound, theta, items, real_NxL)
        a_MxNxL = self._weights(bound, theta, items, real_NxL, h_MxIxD)
        # sum_i a_i V h_i = V sum_i a_i h_i: V acts once per sequence, not once per item
        h_MxNxLxD = padded(h_MxIxD, real_NxL)
        z_MxNxD = (a_MxNxL[..., None, :] @ h_MxNxLxD).squeeze(-2) @ theta["V"]
        if record is not None:
            record["update"] = z_MxNxD
        return mlp(bound.dropped("block_out", bound.norm("block_out", z_MxNxD)), theta, "3", "4")

    def dispersion(self, theta: Tensors, items: Any, parts: Parts, hyper: Tensors) -> dict[str, Tensor]:
        """Entropy in nats and largest weight of every sequence's attention, [M, N] each: dispersion itself."""
        bound, real_NxL = Bound(parts, theta, hyper), real_items(items.length, items.kind.shape[1])
        a_MxNxL = self._weights(bound, theta, items, real_NxL, self._features(bound, theta, items, real_NxL))
        return {"entropy": entropy(a_MxNxL), "largest_weight": a_MxNxL.amax(-1)}

    def _features(self, bound: Bound, theta: Tensors, items: Any, real_NxL: Tensor) -> Tensor:
        """h_i of every real item, one sequence after the other, after its norm if there is one, [M, I, D]."""
        import torch
        from torch.nn import functional

        # shapes in an exported graph cannot depend on values: there padding also has features, with weight 0
        every = torch.compiler.is_compiling()
        priority_I, kind_I = (x.flatten() if every else x[real_NxL] for x in (items.priority, items.kind))
        one_hot_IxC = functional.one_hot(kind_I, self.classes).to(priority_I.dtype)
        x_IxF = torch.cat([priority_I[:, None], one_hot_IxC], dim=-1)
        return bound.norm("block_in", mlp(x_IxF.expand(len(theta["W_1"]), *x_IxF.shape), theta, "1", "2"))

    def _weights(self, bound: Bound, theta: Tensors, items: Any, real_NxL: Tensor, h_MxIxD: Tensor) -> Tensor:
        """Attention weights of the items of every sequence, zero for padding, [M, N, L]."""
        e_MxIx1 = h_MxIxD @ (theta["K"] @ theta["q"][..., None])  # q . K h_i, as one vector on h_i
        e_MxNxL = padded(e_MxIx1, real_NxL)[..., 0]
        x_MxNx1xD = theta["q"][:, None, None].expand(-1, e_MxNxL.shape[1], -1, -1)
        a = bound.weights(
            e_MxNxL[:, :, None, None], real_NxL[:, None, None], items.length[:, None, None, None], x_MxNx1xD
        )
        return a[:, :, 0, 0]


def padded(x_MxIxD: Tensor, real_NxL: Tensor) -> Tensor:
    """Values of the real items, [M, N, L, D], and zero for padding."""
    import torch

    if torch.compiler.is_compiling() or real_NxL.all():
        return x_MxIxD.unflatten(1, real_NxL.shape)
    whole = x_MxIxD.new_zeros(len(x_MxIxD), real_NxL.numel(), x_MxIxD.shape[-1])
    return whole.index_copy(1, real_NxL.flatten().nonzero()[:, 0], x_MxIxD).unflatten(1, real_NxL.shape)


def mlp(x: Tensor, theta: Tensors, first: str, second: str) -> Tensor:
    """Linear, exact (erf) GELU, Linear, with biases; [M, I, in] to [M, I, out]."""
    from torch.nn import functional

    hidden = functional.gelu(affine(x, theta[f"W_{first}"], theta[f"b_{first}"]))
    return affine(hidden, theta[f"W_{second}"], theta[f"b_{second}"])


def affine(x_MxIxF: Tensor, W_MxFxD: Tensor, b_MxD: Tensor) -> Tensor:
    """x W + b in one operation."""
    return b_MxD[:, None].baddbmm(x_MxIxF, W_MxFxD)


def real_items(length_N: Tensor, positions: int) -> Tensor:
    """True for the items of a sequence, False for its padding, [N, L]."""
    import torch

    return torch.arange(positions, device=length_N.device) < length_N[:, None]
