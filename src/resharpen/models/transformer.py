"""The transformer: layers of causal attention and an MLP, no biases, untied unembedding; by default rotary positions.

    x = E[t];   for every layer   x = x + Attention(x) W_O,   x = x + GELU(x W_1) W_2;   logits = x U

with the norms of a placement between the parts (`parts/placement.py`), each block with its own.

Shapes: M models, N sequences, L positions, D width, H heads, K width of a head, V tokens.
"""

from __future__ import annotations

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

IN_BLOCKS = ("block_in", "block_out", "residual")
"""Sites that every block has."""
IN_ATTENTION = ("heads_out", "queries_keys")
"""Further sites of every attention block; the model has all other sites once."""


@dataclass(frozen=True)
class Transformer(Model):
    """Sizes of a transformer; by default those of the paper."""

    vocabulary: int
    layers: int = 2
    d: int = 64
    heads: int = 4
    d_mlp: int = 256

    kind: ClassVar[str] = "transformer"
    placements: ClassVar[Mapping[str, Placement]] = PLACEMENTS
    positions: ClassVar[str] = "rope"
    compiles: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("layers", "d", "heads", "d_mlp"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: model sizes are at least 1")
        if self.d % self.heads:
            raise ValueError(f"d = {self.d}: must be a multiple of the {self.heads} heads")

    @property
    def width(self) -> int:
        return self.d_mlp

    @property
    def d_head(self) -> int:
        return self.d // self.heads

    @property
    def blocks(self) -> list[str]:
        """The prefix of each block's parameters, in the order in which they act."""
        return [f"{layer}.{block}." for layer in range(self.layers) for block in ("attention", "mlp")]

    def check(self, parts: Parts) -> None:
        check_causal(parts, self._sizes, "d / heads")

    @property
    def _sizes(self) -> dict[str, int]:
        return {"heads": self.heads, "d": self.d, "d_head": self.d_head, "d_heads": self.d}

    def parameters(self, parts: Parts) -> dict[str, Parameter]:
        d, d_mlp = self.d, self.d_mlp
        attention = {"W_Q": (d, d), "W_K": (d, d), "W_V": (d, d), "W_O": (d, d)}
        mlp = {"W_1": (d, d_mlp), "W_2": (d_mlp, d)}
        matrices = {
            block + name: parameter.matrix(*shape)
            for block in self.blocks
            for name, shape in (attention if block.endswith("attention.") else mlp).items()
        }
        of_attention = [block for block in self.blocks if block.endswith("attention.")]
        norms = {"": [site for site in SITES if site not in IN_BLOCKS + IN_ATTENTION]}
        norms |= {block: IN_BLOCKS + IN_ATTENTION * (block in of_attention) for block in self.blocks}
        further = [attention_parameters(parts, block, self._sizes) for block in of_attention]
        return {
            "E": parameter.embedding(self.vocabulary, d),
            **matrices,
            "U": parameter.outer(d, self.vocabulary),
            **norm_parameters(parts, norms, self._sizes),
            **embedding_parameters(parts, self._sizes),
            **{name: found for block in further for name, found in block.items()},
        }

    def logits(
        self, theta: Tensors, tokens_NxL: Tensor, parts: Parts, hyper: Tensors, record: Record | None = None
    ) -> Tensor:
        """Next-token logits after every prefix, [M, N, L, V]; all models read the same sequences."""
        from torch.nn.functional import gelu

        bound = Bound(parts, theta, hyper, record)
        x_MxNxLxD = bound.embedded(embedding(theta["E"], tokens_NxL))
        for block in self.blocks:

            def attention(h: Tensor, block: str = block) -> Tensor:
                z = self._attended(bound, theta, h, block)
                return linear(bound.heads_out(z, h, block), theta[f"{block}W_O"])

            def mlp(h: Tensor, block: str = block) -> Tensor:
                return linear(gelu(linear(h, theta[f"{block}W_1"])), theta[f"{block}W_2"])

            update = attention if block.endswith("attention.") else mlp
            x_MxNxLxD = bound.residual_block(x_MxNxLxD, update, block)
        return linear(bound.norm("unembedding_in", x_MxNxLxD), theta["U"])

    def _attended(self, bound: Bound, theta: Tensors, h_MxNxLxD: Tensor, block: str) -> Tensor:
        """Concatenated outputs of the heads, [M, N, L, D]."""
        import torch

        W_MxDx3D = torch.cat([theta[block + name] for name in ("W_Q", "W_K", "W_V")], dim=-1)  # one product for all
        of_heads = linear(h_MxNxLxD, W_MxDx3D).unflatten(-1, (3, self.heads, self.d_head))
        q, k, v = (x.transpose(-2, -3) for x in of_heads.unbind(-3))
        return causal_attention(bound, q, k, v, h_MxNxLxD, block).transpose(-2, -3).flatten(-2)
