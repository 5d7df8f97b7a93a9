"""The transformer: layers of causal attention with rotary positions and an MLP, no biases, unembedding not tied.

    x = E[t];   for every layer   x = x + Attention(x) W_O,   x = x + GELU(x W_1) W_2;   logits = x U

with the norms of a placement between the parts (`models/placement.py`), each block with its own.

Shapes: M models, N sequences, L positions, D width, H heads, K width of a head, V tokens, P scored prefixes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from resharpen.models.minimal import causal_attention, embedding, linear, mean_nll
from resharpen.models.placement import PLACEMENTS, POSITIONS, Placement
from resharpen.models.remedies import Remedy, softmax

if TYPE_CHECKING:
    from torch import Tensor

IN_BLOCKS = ("block_in", "block_out", "residual")
"""The positions of a placement that every block has once; the others the model has once."""


@dataclass(frozen=True)
class Transformer:
    """Sizes of a transformer; by default those of the paper."""

    vocabulary: int
    layers: int = 2
    d: int = 64
    heads: int = 4
    d_mlp: int = 256

    kind: ClassVar[str] = "transformer"
    placements: ClassVar[Mapping[str, Placement]] = PLACEMENTS

    def __post_init__(self) -> None:
        for name in ("layers", "d", "heads", "d_mlp"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: model sizes are at least 1")
        if self.d % (2 * self.heads):
            raise ValueError(f"d = {self.d}: must be a multiple of twice the {self.heads} heads, for rotary positions")

    @property
    def d_head(self) -> int:
        return self.d // self.heads

    @property
    def blocks(self) -> list[str]:
        """The prefix of each block's parameters, in the order in which they act."""
        return [f"{layer}.{block}." for layer in range(self.layers) for block in ("attention", "mlp")]

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Name and shape of every matrix, the same for every placement."""
        d, d_mlp = self.d, self.d_mlp
        attention = {"W_Q": (d, d), "W_K": (d, d), "W_V": (d, d), "W_O": (d, d)}
        mlp = {"W_1": (d, d_mlp), "W_2": (d_mlp, d)}
        of_blocks = {
            block + name: shape
            for block in self.blocks
            for name, shape in (attention if block.endswith("attention.") else mlp).items()
        }
        return {"E": (self.vocabulary, d), **of_blocks, "U": (d, self.vocabulary)}

    def biases(self) -> dict[str, tuple[int, ...]]:
        return {}

    def gains(self, placement: Placement) -> dict[str, tuple[int]]:
        """Name and shape of the norm gains of a placement."""
        present = [position for position in POSITIONS if getattr(placement, position)]
        names = [f"g_{position}" for position in present if position not in IN_BLOCKS]
        names += [f"{block}g_{position}" for block in self.blocks for position in present if position in IN_BLOCKS]
        return dict.fromkeys(names, (self.d,))

    def logits(
        self,
        theta: Mapping[str, Tensor],
        tokens_NxL: Tensor,
        placement: Placement,
        epsilon_M: Tensor,
        attend: Remedy = softmax,
    ) -> Tensor:
        """Next-token logits after every prefix, [M, N, L, V]; all models read the same sequences."""
        from torch.nn.functional import gelu

        from resharpen.models.norm import Norms

        norms = Norms(placement, theta, epsilon_M)
        x_MxNxLxD = norms("embedding_out", embedding(theta["E"], tokens_NxL))
        for block in self.blocks:

            def attention(h: Tensor, block: str = block) -> Tensor:
                return linear(self._attended(h, theta, block, attend), theta[f"{block}W_O"])

            def mlp(h: Tensor, block: str = block) -> Tensor:
                return linear(gelu(linear(h, theta[f"{block}W_1"])), theta[f"{block}W_2"])

            update = attention if block.endswith("attention.") else mlp
            x_MxNxLxD = norms.residual_block(x_MxNxLxD, update, block)
        return linear(norms("unembedding_in", x_MxNxLxD), theta["U"])

    def _attended(self, h_MxNxLxD: Tensor, theta: Mapping[str, Tensor], block: str, attend: Remedy) -> Tensor:
        """softmax(q . k / sqrt(K)) v of every head, side by side, [M, N, L, D]."""
        from torch.nn.functional import scaled_dot_product_attention

        from resharpen.models.rope import rotate

        def heads(name: str) -> Tensor:
            return linear(h_MxNxLxD, theta[block + name]).unflatten(-1, (self.heads, self.d_head)).transpose(-2, -3)

        q, k, v = rotate(heads("W_Q")), rotate(heads("W_K")), heads("W_V")
        if attend is softmax:
            # torch's own attention, because L x L weights of every head and model would not fit in memory at length 700
            out = scaled_dot_product_attention(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), is_causal=True)
            out = out.unflatten(0, q.shape[:2])
        else:
            out = causal_attention(q @ k.mT / math.sqrt(self.d_head), attend) @ v
        return out.transpose(-2, -3).flatten(-2)

    def attention_weights(
        self,
        theta: Mapping[str, Tensor],
        tokens_NxL: Tensor,
        placement: Placement,
        epsilon_M: Tensor,
        attend: Remedy = softmax,
    ) -> list[Tensor]:
        """What each position attends to, a tensor [M, N, H, L, L] for each layer."""
        weights: list[Tensor] = []

        def recorded(logits: Tensor, n_items: Tensor) -> Tensor:
            weights.append(attend(logits, n_items))
            return weights[-1]

        self.logits(theta, tokens_NxL, placement, epsilon_M, recorded)
        return weights

    def loss(
        self,
        theta: Mapping[str, Tensor],
        batch: Sequence[Tensor],
        placement: Placement,
        epsilon_M: Tensor,
        attend: Remedy = softmax,
    ) -> Tensor:
        """Mean negative log likelihood of the targets over all real pairs, for each model, [M]."""
        inputs_NxL, targets_NxL, real_NxL = batch
        logits_MxPxV = self.logits(theta, inputs_NxL, placement, epsilon_M, attend)[:, real_NxL]
        return mean_nll(logits_MxPxV, targets_NxL[real_NxL])

    def scores(
        self,
        theta: Mapping[str, Tensor],
        examples: Sequence[Tensor],
        placement: Placement,
        epsilon_M: Tensor,
        attend: Remedy = softmax,
    ) -> Tensor:
        """TVD of every scored prefix against its p* [P, V], or the logit of its marked token [P]; [M, P]."""
        inputs_NxL, scored_NxL, wanted = examples
        logits_MxPxV = self.logits(theta, inputs_NxL, placement, epsilon_M, attend)[:, scored_NxL]
        if wanted.ndim == 1:
            return logits_MxPxV.gather(-1, wanted.expand(logits_MxPxV.shape[:-1])[..., None])[..., 0]
        return 0.5 * (logits_MxPxV.softmax(-1) - wanted).abs().sum(-1)
