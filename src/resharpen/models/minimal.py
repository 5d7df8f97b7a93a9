"""The minimal transformer: one layer, one head, attention only, no biases, and by default no positions.

    logits(t_1 .. t_s) = (x + sum_i a(t_s, t_i) V_i W_O) U,   a = softmax over i of Q_s . K_i / sqrt(d_k)

with the norms of a placement between the parts (`parts/placement.py`).

Shapes: M models, N sequences, L positions, D width, V tokens, P states (last token, set of tokens).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from resharpen.lazy import Tensor
from resharpen.models.causal import causal_attention, check_causal
from resharpen.models.layers import (
    Bound,
    Record,
    Tensors,
    attention_parameters,
    embedding,
    embedding_parameters,
    linear,
    norm_parameters,
)
from resharpen.models.model import Model
from resharpen.parts import parameter
from resharpen.parts.parameter import Parameter
from resharpen.parts.parts import Parts
from resharpen.parts.placement import PLACEMENTS, SITES, Placement


@dataclass(frozen=True)
class Minimal(Model):
    """Sizes of a minimal transformer."""

    vocabulary: int
    d: int
    d_k: int
    d_v: int

    kind: ClassVar[str] = "minimal"
    placements: ClassVar[Mapping[str, Placement]] = PLACEMENTS
    compiles: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("d", "d_k", "d_v"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: model sizes are at least 1")

    @property
    def width(self) -> int:
        return max(self.d, self.vocabulary)

    @classmethod
    def usual(cls, vocabulary: int) -> Minimal:
        """The smallest that can solve Set Complement: d = d_v = v - 1, d_k = 1."""
        return cls(vocabulary=vocabulary, d=vocabulary - 1, d_k=1, d_v=vocabulary - 1)

    @property
    def _sizes(self) -> dict[str, int]:
        return {"heads": 1, "d": self.d, "d_head": self.d_k, "d_heads": self.d_v}

    def check(self, parts: Parts) -> None:
        check_causal(parts, self._sizes, "d_k")

    def sees_order(self, parts: Parts) -> bool:
        """Dropout acts on each sequence separately, so that equal sets have different logits."""
        return parts.positions.on != "nothing" or parts.attention.reads_order or bool(parts.dropout.on)

    def parameters(self, parts: Parts) -> dict[str, Parameter]:
        v, d, d_k, d_v = self.vocabulary, self.d, self.d_k, self.d_v
        shapes = {"W_Q": (d, d_k), "W_K": (d, d_k), "W_V": (d, d_v), "W_O": (d_v, d)}
        return {
            "E": parameter.embedding(v, d),
            **{name: parameter.matrix(*shape) for name, shape in shapes.items()},
            "U": parameter.outer(d, v),
            **norm_parameters(parts, {"": SITES}, self._sizes),
            **embedding_parameters(parts, self._sizes),
            **attention_parameters(parts, "", self._sizes),
        }

    def logits(
        self, theta: Tensors, tokens_NxL: Tensor, parts: Parts, hyper: Tensors, record: Record | None = None
    ) -> Tensor:
        """Next-token logits after every prefix, [M, N, L, V]; all models read the same sequences."""
        bound = Bound(parts, theta, hyper, record)

        def attention(h_MxNxLxD: Tensor) -> Tensor:
            q, k, v = (linear(h_MxNxLxD, theta[name])[:, :, None] for name in ("W_Q", "W_K", "W_V"))
            z_MxNxLxK = causal_attention(bound, q, k, v, h_MxNxLxD)[:, :, 0]
            return linear(bound.heads_out(z_MxNxLxK, h_MxNxLxD), theta["W_O"])

        x_MxNxLxD = bound.embedded(embedding(theta["E"], tokens_NxL))
        x_MxNxLxD = bound.residual_block(x_MxNxLxD, attention)
        return linear(bound.norm("unembedding_in", x_MxNxLxD), theta["U"])

    def logits_of_sets(
        self,
        theta: Tensors,
        last_P: Tensor,
        present_PxV: Tensor,
        parts: Parts,
        hyper: Tensors,
        record: Record | None = None,
    ) -> Tensor:
        """The same after distinct tokens, given as the last one and the set of all, [M, P, V].

        Without positions the logits depend only on these, and everything that depends on one token, or on a pair, is
        computed once for all states. In memory the states, the longest axis, are last: parts see the usual shapes.
        """
        from torch.nn.functional import one_hot

        bound = Bound(parts, theta, hyper, record)
        x_MxVxD = bound.norm("embedding_out", theta["E"])
        h_MxVxD = bound.norm("block_in", x_MxVxD)
        q, k, v_MxVxK = (h_MxVxD @ theta[name] for name in ("W_Q", "W_K", "W_V"))
        q, k = bound.turned(q, k)
        e_MxVxV = k @ q.mT / math.sqrt(self.d_k)  # row: key, column: last token
        last_VxP = one_hot(last_P, self.vocabulary).T.to(e_MxVxV.dtype)

        def of_last(x_MxDxV: Tensor) -> Tensor:
            return (x_MxDxV @ last_VxP).mT

        h_MxPx1xD = of_last(h_MxVxD.mT)[:, :, None]
        a_MxPx1x1xV = bound.weights(
            of_last(e_MxVxV)[:, :, None, None],
            present_PxV[:, None, None],
            present_PxV.sum(-1)[:, None, None, None],
            h_MxPx1xD,
        )
        a_MxVxP = a_MxPx1x1xV[:, :, 0, 0].mT
        if bound.leaves_heads:
            y_MxDxP = (v_MxVxK @ theta["W_O"]).mT @ a_MxVxP
        else:
            z_MxPx1xK = bound.heads_out((v_MxVxK.mT @ a_MxVxP).mT[:, :, None], h_MxPx1xD)
            y_MxDxP = (z_MxPx1xK[:, :, 0] @ theta["W_O"]).mT
        x_MxPxD = bound.close_block(of_last(x_MxVxD.mT), y_MxDxP.mT)
        return (theta["U"].mT @ bound.norm("unembedding_in", x_MxPxD).mT).mT
