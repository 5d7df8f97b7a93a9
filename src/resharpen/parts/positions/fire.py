"""e_ij + f(psi(i-j) / psi(max(L, i))), psi(x) = log(c x + 1), f an MLP with 32 hidden units (Li et al., 2024).

f has one input, ReLU and one output per head. c starts at 0.1; L is a learned multiple of a quarter of the task's
longest input, starting at 1: the authors start at 512 of 2,048 tokens. Beyond position L, distances are relative to the
position of the query, so that the input of f stays in its training range.
"""

from __future__ import annotations

from typing import Any

from resharpen.lazy import Tensor
from resharpen.parts.parameter import learned
from resharpen.parts.part import positions

HIDDEN = 32
AT_ONCE = 2**24
"""Limit on hidden activations of f in memory at a time, when scoring."""


@positions(
    on="logits",
    by_length=True,
    c=learned(start=0.1),
    L=learned(start=1.0),
    W_1=learned(HIDDEN, inner=False),
    b_1=learned(HIDDEN, start=0.0),
    W_2=learned("heads", HIDDEN, inner=False),
    b_2=learned("heads", start=0.0),
)
def fire(e: Tensor, p: Any) -> Tensor:
    if "bias" not in p.kept:
        p.kept["bias"] = bias(e, p)
    return e + p.kept["bias"]


def bias(e: Tensor, p: Any) -> Tensor:
    """f of every pair of positions, [M, 1, H, L, L]: the same for all sequences."""
    import torch

    models, length = len(p.c), e.shape[-1]
    c, L = p.c.view(models, 1, 1).abs(), p.L.view(models, 1, 1).abs() * p.longest / 4
    W_1, b_1 = (x.view(models, 1, 1, HIDDEN) for x in (p.W_1, p.b_1))
    W_2, b_2 = p.W_2.view(models, 1, -1, HIDDEN).mT, p.b_2.view(models, 1, 1, -1)

    def of_rows(i: Tensor) -> Tensor:
        j = torch.arange(length, dtype=e.dtype, device=e.device)
        distance = (i[:, None] - j).clamp(min=0)
        share = (c * distance).log1p() / ((c * i[:, None].maximum(L)).log1p() + 1e-6)
        return (share[..., None] * W_1 + b_1).relu() @ W_2 + b_2

    position = torch.arange(length, dtype=e.dtype, device=e.device)
    rows = length if torch.compiler.is_compiling() else max(1, AT_ONCE // (models * length * HIDDEN))
    return torch.cat([of_rows(i) for i in position.split(rows)], dim=1).permute(0, 3, 1, 2)[:, None]
