"""Causal attention with the parts of a variant.

Shapes: M models, N sequences, H heads, L positions, K width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from resharpen.models.layers import Bound
from resharpen.models.model import Misfit, check_norm
from resharpen.parts.parts import Parts
from resharpen.parts.positions.nape import nape
from resharpen.parts.positions.randomized import randomized_rope
from resharpen.parts.positions.rope import rope
from resharpen.parts.positions.rope_500k import rope_500k
from resharpen.parts.positions.rope_half import rope_half

if TYPE_CHECKING:
    from torch import Tensor


WEIGHTS_AT_ONCE = 2**24
"""Bound on attention weights, of all models and heads, in memory at a time: a few sequences after the other, for
lengths of a thousand. What is recorded stays whole."""


def causal_attention(bound: Bound, q: Tensor, k: Tensor, v: Tensor, x_MxNxLxD: Tensor, block: str = "") -> Tensor:
    """What every position gathers from those that it sees, [M, N, H, L, K], from q, k, v of that shape."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    q, k = bound.turned(q, k, block)
    part, length = bound.parts.attention, q.shape[-2]
    key_L = torch.arange(length, device=q.device)
    seen_LxL, n_Lx1 = key_L <= key_L[:, None], 1 + key_L[:, None]
    if part.window:
        seen_LxL, n_Lx1 = seen_LxL & (key_L > key_L[:, None] - part.window), n_Lx1.clamp(max=part.window)
    # A compiled scale is faster written out: it becomes part of the softmax.
    written_out = part.scale is not None and torch.compiler.is_compiling()
    dropped = bound.parts.moment is not None and "weights" in bound.parts.dropout.on
    needs_weights = dropped or bound.record is not None or written_out
    if part.softmax and bound.parts.positions.on != "logits" and not needs_weights:
        # torch's own attention, because L x L weights of every head and model would not fit in memory at length 700
        q = bound.scaled_queries(q, n_Lx1, x_MxNxLxD, block)
        q_k_v, mask = (x.flatten(0, 1) for x in (q, k, v)), seen_LxL if part.window else None
        out = scaled_dot_product_attention(*q_k_v, attn_mask=mask, is_causal=mask is None)
        return out.unflatten(0, q.shape[:2])

    def gathered(q: Tensor, k: Tensor, v: Tensor, x: Tensor, row_N: Tensor | None = None) -> Tensor:
        return bound.weights(q @ k.mT / math.sqrt(q.shape[-1]), seen_LxL, n_Lx1, x, block, row_N) @ v

    if bound.record is not None or torch.compiler.is_compiling():  # there pieces are small, and of any length
        return gathered(q, k, v, x_MxNxLxD)
    sequences = max(1, WEIGHTS_AT_ONCE // (q.shape[0] * q.shape[2] * length**2))
    if sequences >= q.shape[1]:
        return gathered(q, k, v, x_MxNxLxD)
    split = (x.split(sequences, dim=1) for x in (q, k, v, x_MxNxLxD))
    given = bound.parts.moment and bound.parts.moment.row_N
    rows = (torch.arange(q.shape[1], device=q.device) if given is None else given).split(sequences)
    return torch.cat([gathered(*some) for some in zip(*split, rows, strict=True)], dim=1)


def check_causal(parts: Parts, sizes: Mapping[str, int], width: str) -> None:
    """Misfit for a part that has no meaning with causal attention of these sizes; `width` is what d_head is called."""
    check_norm(parts)
    heads, d_head = sizes["heads"], sizes["d_head"]
    if parts.attention.orders and parts.positions.on != "nothing":
        raise Misfit("positions", f"{parts.attention.name} makes an order by itself and goes without positions")
    if parts.positions.by_length and parts.longest is None:
        why = "goes by the longest input, and the task does not say how long that is (`longest_input`)"
        raise Misfit("positions", f"{parts.positions.name} {why}")
    if parts.longest is not None and parts.longest <= (parts.attention.window or 0):
        why = f"no input of the task is longer than {parts.longest} tokens: it would change nothing"
        raise Misfit(
            "attention", f"{parts.attention.name} leaves out keys {parts.attention.window} tokens back, and {why}"
        )
    if "pairs" in {size for x in parts.attention.parameters.values() for size in x.shape} and heads % 2:
        raise Misfit("attention", f"{parts.attention.name} goes by pairs of heads: heads = {heads} is odd")
    if parts.positions in (rope, rope_500k, randomized_rope) and d_head % 2:
        raise Misfit("positions", f"rope turns pairs of features: {width} = {d_head} is odd")
    if parts.positions is rope_half and d_head % 4:
        raise Misfit("positions", f"rope-half turns pairs in half of a head: {width} = {d_head} is no multiple of 4")
    if parts.positions is nape and heads % 2:
        raise Misfit("positions", f"nape gives positions to half of the heads: heads = {heads} is odd")
    if parts.placement.queries_keys and d_head == 1:
        raise Misfit("placement", f"a norm makes a sign of queries and keys of one number: {width} = 1")
