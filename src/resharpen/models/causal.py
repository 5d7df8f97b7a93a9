"""Causal attention with the parts of a variant.

Shapes: M models, N sequences, H heads, L positions, K width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from resharpen.lazy import Tensor
from resharpen.models.layers import Bound
from resharpen.models.model import Misfit, check_norm
from resharpen.parts.parts import Parts
from resharpen.parts.positions.nape import nape
from resharpen.parts.positions.randomized import randomized_rope
from resharpen.parts.positions.rope import rope
from resharpen.parts.positions.rope_500k import rope_500k
from resharpen.parts.positions.rope_half import rope_half

WEIGHTS_AT_ONCE = 2**24
"""Limit on attention weights, of all models and heads, in memory at a time: long inputs are processed a few sequences
at a time. Recorded activations are not split."""


def causal_attention(bound: Bound, q: Tensor, k: Tensor, v: Tensor, x_MxNxLxD: Tensor, block: str = "") -> Tensor:
    """Attention output of every position, [M, N, H, L, K], from q, k, v of that shape."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    q, k = bound.turned(q, k, block)
    part, length = bound.parts.attention, q.shape[-2]
    key_L = torch.arange(length, device=q.device)
    seen_LxL, n_Lx1 = key_L <= key_L[:, None], 1 + key_L[:, None]
    if part.window:
        seen_LxL, n_Lx1 = seen_LxL & (key_L > key_L[:, None] - part.window), n_Lx1.clamp(max=part.window)
    # torch.compile fuses an explicit scale into the softmax, which is faster
    written_out = part.scale is not None and torch.compiler.is_compiling()
    dropped = bound.parts.moment is not None and "weights" in bound.parts.dropout.on
    needs_weights = dropped or bound.record is not None or written_out
    if part.softmax and bound.parts.positions.on != "logits" and not needs_weights:
        # torch's attention, because L x L weights per head and model would not fit in memory at length 700
        q = bound.scaled_queries(q, n_Lx1, x_MxNxLxD, block)
        q_k_v, mask = (x.flatten(0, 1) for x in (q, k, v)), seen_LxL if part.window else None
        out = scaled_dot_product_attention(*q_k_v, attn_mask=mask, is_causal=mask is None)
        return out.unflatten(0, q.shape[:2])

    def gathered(q: Tensor, k: Tensor, v: Tensor, x: Tensor, row_N: Tensor | None = None) -> Tensor:
        return bound.weights(q @ k.mT / math.sqrt(q.shape[-1]), seen_LxL, n_Lx1, x, block, row_N) @ v

    if bound.record is not None or torch.compiler.is_compiling():  # compiled pieces are small, and of any length
        return gathered(q, k, v, x_MxNxLxD)
    sequences = max(1, WEIGHTS_AT_ONCE // (q.shape[0] * q.shape[2] * length**2))
    if sequences >= q.shape[1]:
        return gathered(q, k, v, x_MxNxLxD)
    split = (x.split(sequences, dim=1) for x in (q, k, v, x_MxNxLxD))
    given = bound.parts.moment and bound.parts.moment.row_N
    rows = (torch.arange(q.shape[1], device=q.device) if given is None else given).split(sequences)
    return torch.cat([gathered(*some) for some in zip(*split, rows, strict=True)], dim=1)


def check_causal(parts: Parts, sizes: Mapping[str, int], width: str) -> None:
    """Misfit for a part that causal attention of these sizes cannot use; `width` is the name of d_head in messages."""
    check_norm(parts)
    heads, d_head = sizes["heads"], sizes["d_head"]
    if parts.attention.orders and parts.positions.on != "nothing":
        raise Misfit("positions", f"{parts.attention.name} encodes order itself and cannot be combined with positions")
    if parts.positions.by_length and parts.longest is None:
        why = "depends on the longest input, but the task does not define it (`longest_input`)"
        raise Misfit("positions", f"{parts.positions.name} {why}")
    if parts.longest is not None and parts.longest <= (parts.attention.window or 0):
        why = f"no input of the task is longer than {parts.longest} tokens: it would have no effect"
        raise Misfit("attention", f"{parts.attention.name} masks keys {parts.attention.window} tokens back, but {why}")
    if "pairs" in {size for x in parts.attention.parameters.values() for size in x.shape} and heads % 2:
        raise Misfit("attention", f"{parts.attention.name} needs pairs of heads, but heads = {heads} is odd")
    if parts.positions in (rope, rope_500k, randomized_rope) and d_head % 2:
        raise Misfit("positions", f"rope rotates pairs of features, but {width} = {d_head} is odd")
    if parts.positions is rope_half and d_head % 4:
        raise Misfit(
            "positions", f"rope-half rotates pairs in half of a head, but {width} = {d_head} is not a multiple of 4"
        )
    if parts.positions is nape and heads % 2:
        raise Misfit("positions", f"nape gives positions to half of the heads, but heads = {heads} is odd")
    if parts.placement.queries_keys and d_head == 1:
        raise Misfit("placement", f"a norm on one-dimensional queries and keys ({width} = 1) keeps only the sign")
