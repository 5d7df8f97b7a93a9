"""E[t] + P[o + i], with a uniform random offset o in training, 0 when scored (Huang et al., 2025).

P has a vector for each position up to the task's longest input, as in `learned`; in training a sequence of n tokens
begins at a position drawn uniformly from 0 .. longest - n, so that all of P is trained.
"""

from __future__ import annotations

from typing import Any

from resharpen.lazy import Tensor
from resharpen.parts.parameter import learned
from resharpen.parts.part import positions
from resharpen.parts.positions.learned import check_length


@positions(on="embedding", by_length=True, P=learned("longest", "d", role="embedding"))
def learned_offset(x: Tensor, p: Any) -> Tensor:
    import torch

    length = check_length(x, p)
    if not p.training:
        return x + p.P[..., :length, :]
    longest = p.P.shape[-2]
    words_MxN = (p.uniform() * 2**24).long()  # integers, so that every precision gets the same
    first_MxN = first_positions(words_MxN, p.lengths, longest)
    position = first_MxN[..., None] + torch.arange(length, device=x.device)
    return x + rows(p.P, position.clamp(max=longest - 1))  # positions beyond the table are padding


def first_positions(words: Any, lengths: Any, longest: int) -> Any:
    """From 24 random bits per sequence and its length to the position where it begins."""
    return (words * (longest - lengths + 1)) >> 24


def rows(P_Mx1xRxD: Tensor, position_MxNxL: Tensor) -> Tensor:
    """Rows of each model's own table, [M, N, L, D]."""
    import torch

    M = torch.arange(len(P_Mx1xRxD), device=P_Mx1xRxD.device)
    return P_Mx1xRxD[:, 0][M[:, None, None], position_MxNxL]
