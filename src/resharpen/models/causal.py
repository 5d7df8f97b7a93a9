"""Causal attention with the parts of a variant, and what an attention may look at.

Shapes: M models, N sequences, H heads, L positions, K width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from resharpen.models.layers import Bound
from resharpen.models.model import Misfit
from resharpen.optim.hyperparameters import TABLE
from resharpen.parts.attention.gated import gated
from resharpen.parts.attention.softmax import softmax
from resharpen.parts.part import Attention
from resharpen.parts.parts import Parts

if TYPE_CHECKING:
    from torch import Tensor


WEIGHTS_AT_ONCE = 2**24
"""Bound on attention weights, of all models and heads, in memory at a time: a few sequences after the other, for
lengths of a thousand. What is recorded stays whole."""


def causal_attention(bound: Bound, q: Tensor, k: Tensor, v: Tensor, x_MxNxLxD: Tensor, block: str = "") -> Tensor:
    """What every position gathers from those up to its own, [M, N, H, L, K], from q, k, v of that shape."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    q, k = bound.turned(q, k, block)
    plain = bound.parts.attention in (softmax, gated) and bound.parts.positions.on != "logits" and bound.record is None
    if plain:
        # torch's own attention, because L x L weights of every head and model would not fit in memory at length 700
        out = scaled_dot_product_attention(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), is_causal=True)
        return out.unflatten(0, q.shape[:2])
    length = q.shape[-2]
    n_Lx1 = torch.arange(1, length + 1, device=q.device)[:, None]
    seen_LxL = torch.arange(length, device=q.device) < n_Lx1

    def gathered(q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        return bound.weights(q @ k.mT / math.sqrt(q.shape[-1]), seen_LxL, n_Lx1, x, block) @ v

    if bound.record is not None or torch.compiler.is_compiling():  # there pieces are small, and of any length
        return gathered(q, k, v, x_MxNxLxD)
    sequences = max(1, WEIGHTS_AT_ONCE // (q.shape[0] * q.shape[2] * length**2))
    if sequences >= q.shape[1]:
        return gathered(q, k, v, x_MxNxLxD)
    split = (x.split(sequences, dim=1) for x in (q, k, v, x_MxNxLxD))
    return torch.cat([gathered(*some) for some in zip(*split, strict=True)], dim=1)


def check_causal(parts: Parts, sizes: Mapping[str, int], width: str) -> None:
    """Misfit for a part that has no meaning with causal attention of these sizes; `width` is what d_head is called."""
    heads, d_head = sizes["heads"], sizes["d_head"]
    if parts.attention.orders and parts.positions.on != "nothing":
        raise Misfit("positions", f"{parts.attention.name} makes an order by itself and goes without positions")
    if parts.positions.name == "rope" and d_head % 2:
        raise Misfit("positions", f"rope turns pairs of features: {width} = {d_head} is odd")
    if parts.positions.name == "nape" and heads % 2:
        raise Misfit("positions", f"nape gives positions to half of the heads: heads = {heads} is odd")
    if parts.placement.queries_keys and d_head == 1:
        raise Misfit("placement", f"a norm makes a sign of queries and keys of one number: {width} = 1")


def sees_only_sets(attention: Attention, sizes: Mapping[str, int]) -> bool:
    """Whether weights depend on which keys are seen and not on their order, nor on keys that are not seen.

    Found by trial, so that it holds for any function: the same keys in another order, among unseen ones, must get the
    same weights.
    """
    return _sees_only_sets(attention, tuple(sizes.items()))


@cache
def _sees_only_sets(attention: Attention, sizes: tuple[tuple[str, int], ...]) -> bool:
    import torch

    random = torch.Generator().manual_seed(0)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=random, dtype=torch.float64) + 0.5

    by_name = dict(sizes)
    learned = {name: uniform(2, 1, *p.sized(by_name).shape) for name, p in attention.parameters.items()}  # pyright: ignore[reportArgumentType]
    learned = {name: x.view(*x.shape, *(1,) * (5 - x.ndim)) for name, x in learned.items()}
    hyper = {name: uniform(2, 1, 1, 1, 1) for name in {**TABLE, **attention.hyperparameters}}
    e, x = 2 * uniform(2, 3, by_name["heads"], 1, 5) - 2, uniform(2, 3, 1, by_name["d"])
    p: Any = SimpleNamespace(**hyper, **learned, n=torch.full((3, 1, 1, 1), 5.0, dtype=torch.float64), x=x)
    order = torch.tensor([6, 1, 4, 0, 3])
    among = 9 * uniform(2, 3, by_name["heads"], 1, 7)
    among[..., order] = e
    seen_7 = torch.zeros(7, dtype=torch.bool)
    seen_7[order] = True
    alone, moved = attention(e, torch.ones(5, dtype=torch.bool), p), attention(among, seen_7, p)
    return bool(torch.allclose(alone, moved[..., order], rtol=1e-9, atol=1e-12) and (moved[..., ~seen_7] == 0).all())
