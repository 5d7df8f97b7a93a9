"""The model of Maximum Retrieval: a single learned query attends to a set of items.

    h_i = psi(x_i)         psi = Linear(1 + C, d) GELU Linear(d, d)         x_i = (priority | one-hot class)
    e_i = q . K h_i        z = sum_i softmax(e)_i V h_i                     logits = phi(z)
                           phi = Linear(d, d) GELU Linear(d, C)

psi and phi have biases, K and V none, and e is not scaled by 1/sqrt(d). Of the five positions of a norm two exist:
`block_in` normalises h_i, for K and V alike, and `block_out` normalises z.

Shapes: M models, N sequences, L positions, D width, C classes. A matrix is [in, out] and acts as x W.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from resharpen.models.minimal import linear, mean_nll
from resharpen.models.placement import Placement
from resharpen.models.remedies import Remedy, entropy, softmax

if TYPE_CHECKING:
    from torch import Tensor

    from resharpen.models.norm import Norms

RETRIEVER_PLACEMENTS = {
    "none": Placement(),
    "pre": Placement(block_in=True),
    "post": Placement(block_out=True),
    "peri": Placement(block_in=True, block_out=True),
}


@dataclass(frozen=True)
class Retriever:
    """Sizes of a retriever; by default the paper's."""

    hidden: int = 128
    classes: int = 10

    kind: ClassVar[str] = "retriever"
    placements: ClassVar[Mapping[str, Placement]] = RETRIEVER_PLACEMENTS

    def __post_init__(self) -> None:
        for name, least in (("hidden", 1), ("classes", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} = {getattr(self, name)}: at least {least}")

    def matrices(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every matrix and of the query, the same for every placement."""
        d, c = self.hidden, self.classes
        shapes = {"W_1": (1 + c, d), "W_2": (d, d), "K": (d, d), "V": (d, d), "q": (d,)}
        return shapes | {"W_3": (d, d), "W_4": (d, c)}

    def biases(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every bias."""
        d = self.hidden
        return {"b_1": (d,), "b_2": (d,), "b_3": (d,), "b_4": (self.classes,)}

    def gains(self, placement: Placement) -> dict[str, tuple[int, ...]]:
        """Name and shape of the norm gains of a placement."""
        check_placement(placement)
        return {
            f"g_{position}": (self.hidden,) for position in ("block_in", "block_out") if getattr(placement, position)
        }

    def logits(
        self,
        theta: Mapping[str, Tensor],
        items: Sequence[Tensor],
        placement: Placement,
        epsilon_M: Tensor,
        attend: Remedy = softmax,
    ) -> Tensor:
        """Class logits of every sequence, [M, N, C]; `items` starts with priorities, classes and lengths."""
        from resharpen.models.norm import Norms

        norms = Norms(placement, theta, epsilon_M)
        h_MxNxLxD = self.features(theta, items, norms)
        a_MxNxL = self.weights(theta, items, h_MxNxLxD, attend)
        z_MxNxD = (a_MxNxL[..., None, :] @ linear(h_MxNxLxD, theta["V"])).squeeze(-2)
        return mlp(norms("block_out", z_MxNxD), theta, "3", "4")

    def features(self, theta: Mapping[str, Tensor], items: Sequence[Tensor], norms: Norms) -> Tensor:
        """h_i of every item, after its norm if there is one, [M, N, L, D].

        Padding has no weight in what follows, but zero times NaN would be seen: it is read as priority 0, class 0.
        """
        import torch
        from torch.nn import functional

        priority_NxL, class_NxL, length_N, *_ = items
        real_NxL = real_items(length_N, class_NxL.shape[1])
        one_hot_NxLxC = functional.one_hot(class_NxL * real_NxL, self.classes).to(priority_NxL.dtype)
        priority_NxL = torch.where(real_NxL, priority_NxL, 0)
        x_NxLxF = torch.cat([priority_NxL[..., None], one_hot_NxLxC], dim=-1)
        x_MxNxLxF = x_NxLxF.expand(len(theta["W_1"]), *x_NxLxF.shape)
        return norms("block_in", mlp(x_MxNxLxF, theta, "1", "2"))

    def weights(
        self, theta: Mapping[str, Tensor], items: Sequence[Tensor], h_MxNxLxD: Tensor, attend: Remedy
    ) -> Tensor:
        """Attention weights of the items of every sequence, zero for padding, [M, N, L]."""
        length_N = items[2]
        e_MxNxL = linear(linear(h_MxNxLxD, theta["K"]), theta["q"][..., None])[..., 0]
        padding_NxL = ~real_items(length_N, e_MxNxL.shape[-1])
        return attend(e_MxNxL.masked_fill(padding_NxL, -float("inf")), length_N)

    def loss(
        self,
        theta: Mapping[str, Tensor],
        batch: Sequence[Tensor],
        placement: Placement,
        epsilon_M: Tensor,
        attend: Remedy = softmax,
    ) -> Tensor:
        """Mean negative log likelihood of the labels, for each model, [M]."""
        return mean_nll(self.logits(theta, batch, placement, epsilon_M, attend), batch[3])

    def scores(
        self,
        theta: Mapping[str, Tensor],
        examples: Sequence[Tensor],
        placement: Placement,
        epsilon_M: Tensor,
        attend: Remedy = softmax,
    ) -> Tensor:
        """1 where the label has the highest logit, else 0, nan without finite logits, for every sequence, [M, P]."""
        logits_MxPxC = self.logits(theta, examples, placement, epsilon_M, attend)
        right_MxP = (logits_MxPxC.argmax(-1) == examples[3]).to(logits_MxPxC.dtype)
        return right_MxP.masked_fill(~logits_MxPxC.isfinite().all(-1), float("nan"))

    def attention(
        self,
        theta: Mapping[str, Tensor],
        examples: Sequence[Tensor],
        placement: Placement,
        epsilon_M: Tensor,
        attend: Remedy = softmax,
    ) -> tuple[Tensor, Tensor]:
        """Entropy in nats and largest weight of every sequence's attention, [M, P] each: dispersion itself."""
        from resharpen.models.norm import Norms

        h_MxPxLxD = self.features(theta, examples, Norms(placement, theta, epsilon_M))
        a_MxPxL = self.weights(theta, examples, h_MxPxLxD, attend)
        return entropy(a_MxPxL), a_MxPxL.amax(-1)


def check_placement(placement: Placement) -> None:
    """A retriever has four placements and no others."""
    if placement not in RETRIEVER_PLACEMENTS.values():
        raise ValueError(f"a retriever's placements are {', '.join(RETRIEVER_PLACEMENTS)}: norms on h_i and on z only")


def mlp(x: Tensor, theta: Mapping[str, Tensor], first: str, second: str) -> Tensor:
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
