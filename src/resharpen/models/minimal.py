"""The minimal transformer: one layer, one head, attention only, no positions, no biases.

    logits(t_1 .. t_s) = (x + sum_i a(t_s, t_i) V_i W_O) U,   a = softmax over i of Q_s . K_i / sqrt(d_k)

with the norms of a placement between the parts (`models/placement.py`).

Shapes: M models, N sequences, L positions, D width, V tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from resharpen.models.placement import PLACEMENTS, POSITIONS, Placement
from resharpen.models.remedies import Remedy, softmax

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Minimal:
    """Sizes of a minimal transformer."""

    vocabulary: int
    d: int
    d_k: int
    d_v: int

    kind: ClassVar[str] = "minimal"
    placements: ClassVar[Mapping[str, Placement]] = PLACEMENTS

    def __post_init__(self) -> None:
        for name in ("d", "d_k", "d_v"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: model sizes are at least 1")

    @classmethod
    def smallest(cls, v: int) -> Minimal:
        """The smallest that can solve Set Complement: d = d_v = v - 1, d_k = 1."""
        return cls(vocabulary=v, d=v - 1, d_k=1, d_v=v - 1)

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Name and shape of every matrix, the same for every placement."""
        v, d, d_k, d_v = self.vocabulary, self.d, self.d_k, self.d_v
        return {"E": (v, d), "W_Q": (d, d_k), "W_K": (d, d_k), "W_V": (d, d_v), "W_O": (d_v, d), "U": (d, v)}

    def biases(self) -> dict[str, tuple[int, ...]]:
        return {}

    def gains(self, placement: Placement) -> dict[str, tuple[int]]:
        """Name and shape of the norm gains of a placement."""
        return {f"g_{position}": (self.d,) for position in POSITIONS if getattr(placement, position)}

    def logits(
        self,
        theta: Mapping[str, Tensor],
        tokens_NxL: Tensor,
        placement: Placement,
        epsilon_M: Tensor,
        attend: Remedy = softmax,
    ) -> Tensor:
        """Next-token logits after every prefix, [M, N, L, V]; all models read the same sequences."""
        from resharpen.models.norm import Norms

        norms = Norms(placement, theta, epsilon_M)

        def attention(h_MxNxLxD: Tensor) -> Tensor:
            q, k, v = (linear(h_MxNxLxD, theta[name]) for name in ("W_Q", "W_K", "W_V"))
            a_MxNxLxL = causal_attention(q @ k.mT / math.sqrt(self.d_k), attend)
            return linear(a_MxNxLxL @ v, theta["W_O"])

        x_MxNxLxD = norms("embedding_out", embedding(theta["E"], tokens_NxL))
        x_MxNxLxD = norms.residual_block(x_MxNxLxD, attention)
        return linear(norms("unembedding_in", x_MxNxLxD), theta["U"])

    def loss(
        self,
        theta: Mapping[str, Tensor],
        batch: Sequence[Tensor],
        placement: Placement,
        epsilon_M: Tensor,
        attend: Remedy = softmax,
    ) -> Tensor:
        """Mean negative log likelihood of the targets over all prefixes, for each model, [M]."""
        inputs_NxL, targets_NxL = batch
        return mean_nll(self.logits(theta, inputs_NxL, placement, epsilon_M, attend), targets_NxL)

    def scores(
        self,
        theta: Mapping[str, Tensor],
        examples: Sequence[Tensor],
        placement: Placement,
        epsilon_M: Tensor,
        attend: Remedy = softmax,
    ) -> Tensor:
        """TVD of every scored prefix against its p*, [M, P]."""
        inputs_NxL, scored_NxL, p_star_PxV = examples
        p_MxPxV = self.logits(theta, inputs_NxL, placement, epsilon_M, attend)[:, scored_NxL].softmax(-1)
        return 0.5 * (p_MxPxV - p_star_PxV).abs().sum(-1)


def mean_nll(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean negative log likelihood of each model, [M], from logits [M, ..., V] and targets [...] that all share."""
    from torch.nn import functional

    each = targets.expand(logits.shape[:-1])
    nll = functional.cross_entropy(logits.flatten(0, -2), each.flatten(), reduction="none")
    return nll.view(len(logits), -1).mean(1)


def embedding(E_MxVxD: Tensor, tokens_NxL: Tensor) -> Tensor:
    """Rows of each model's embedding, [M, N, L, D]."""
    return E_MxVxD.index_select(1, tokens_NxL.flatten()).unflatten(1, tokens_NxL.shape)


def linear(x: Tensor, W_MxIxO: Tensor) -> Tensor:
    """Each model's own matrix on its activations [M, ..., I]: one product a model, however many positions."""
    return (x.flatten(1, -2) @ W_MxIxO).unflatten(1, x.shape[1:-1])


def causal_attention(logits: Tensor, attend: Remedy = softmax) -> Tensor:
    """Attention weights [..., L, L]: position i attends to the i + 1 positions up to its own."""
    import torch

    length = logits.shape[-1]
    future = torch.ones(length, length, dtype=torch.bool, device=logits.device).triu(1)
    return attend(logits.masked_fill(future, -math.inf), torch.arange(1, length + 1, device=logits.device))
