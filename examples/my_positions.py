"""ALiBi: e_ij - m_h (i - j), m_h = 2^(-8h/H) for the heads h = 1 .. H (Press et al., 2022)."""

import torch

import resharpen as rs


@rs.positions(on="logits")
def my_alibi(e, p):
    heads, length = e.shape[-3], e.shape[-1]
    position = torch.arange(length, dtype=e.dtype, device=e.device)
    slope = 2 ** (-8 * torch.arange(1, heads + 1, dtype=e.dtype, device=e.device) / heads)
    return e - slope[:, None, None] * (position[:, None] - position)
