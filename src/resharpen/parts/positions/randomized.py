"""Random sorted positions instead of 0, 1, 2, ... (Ruoss et al., 2023).

A sequence of n tokens has n positions, drawn without replacement from 0 .. 4 x longest - 1 and sorted, `longest` being
the task's longest input: training covers all positions of longer inputs. In training there is one random order of all
positions per model and step, and a sequence uses its first n, in all blocks; the authors sample again in every layer.
For scoring the order is fixed, the same for all models. n is the length of the whole input: a short prefix of a long
input has denser positions than a short input.

Shapes: M models, N sequences, H heads, L positions, K width of a head, R all positions that are drawn from.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from resharpen import streams
from resharpen.errors import UserError
from resharpen.lazy import Tensor
from resharpen.parts.parameter import learned
from resharpen.parts.part import positions
from resharpen.parts.positions.alibi import sloped, slopes
from resharpen.parts.positions.learned_offset import rows
from resharpen.parts.positions.rope import rotation, turned

if TYPE_CHECKING:
    import torch


@positions(on="queries_keys", by_length=True)
def randomized_rope(q: Tensor, k: Tensor, p: Any) -> tuple[Tensor, Tensor]:
    """`rope` with positions drawn from 4 times the longest input and sorted (Ruoss et al., 2023)."""
    position = drawn(q, p)[:, :, None]
    cos, sin = (table[position] for table in _rotation(p.drawn_from, q.shape[-1], q.dtype, q.device))
    return turned(q, cos, sin), turned(k, cos, sin)


@positions(on="logits", by_length=True)
def randomized_alibi(e: Tensor, p: Any) -> Tensor:
    """`alibi` with positions drawn from 4 times the longest input and sorted (Ruoss et al., 2023)."""
    return sloped(e, slopes(e), drawn(e, p)[:, :, None].to(e.dtype))


@positions(on="embedding", by_length=True, s=learned(start=0.02))
def randomized_sinusoidal(x: Tensor, p: Any) -> Tensor:
    """`sinusoidal` with positions drawn from 4 times the longest input and sorted (Ruoss et al., 2023)."""
    import torch

    d = x.shape[-1]
    cos, sin = _rotation(p.drawn_from, d + d % 2, x.dtype, x.device)
    return x + p.s * torch.stack([sin, cos], dim=-1).flatten(-2)[:, :d][drawn(x, p)]


@positions(on="embedding", by_length=True, P=learned("drawn_from", "d", role="embedding"))
def randomized_learned(x: Tensor, p: Any) -> Tensor:
    """`learned` with positions drawn from 4 times the longest input and sorted (Ruoss et al., 2023)."""
    position = drawn(x, p)
    return x + rows(p.P, position.expand(len(p.P), -1, -1))


def drawn(x: Tensor, p: Any) -> Tensor:
    """The positions of the tokens of x [M, ..., L, K], [M, N, L] in training, else [1, 1, L]."""
    import torch

    length, every = x.shape[-2], p.drawn_from
    if length > every:
        raise UserError(f"an input of {length} tokens: there are only {every} randomized positions")
    if not p.training:
        return torch.tensor(np.sort(_scored_order(every)[:length]), device=x.device)[None, None]
    number = torch.arange(length, device=x.device)
    first_Mx1xL = p.uniform(every, shared=True).argsort(dim=-1, stable=True)[..., :length]
    # padding is last; its positions do not matter
    return first_Mx1xL.where(number < p.lengths[:, None], every + number).sort(dim=-1).values.clamp(max=every - 1)


@lru_cache(maxsize=16)
def _scored_order(every: int) -> np.ndarray:
    u = streams.uniforms(streams.key(0, "randomized positions", str(every)), every, np.zeros(1, np.int64))
    return np.argsort(u.ravel(), kind="stable")


def _rotation(every: int, d_head: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    return rotation(every, d_head, dtype, device)


_rotation._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]  # as in rope.py
