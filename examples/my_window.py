"""Keys to leave out when models are read: resharpen figure runs/mine --attention examples/my_window.py:near"""

import torch

import resharpen as rs


def distance(e):  # from every query back to every key
    return torch.arange(e.shape[-2], device=e.device)[:, None] - torch.arange(e.shape[-1], device=e.device)


@rs.attention(trains=False)
def near(e, mask, p):
    """Nothing that is further away than anything was in training, at most 100 tokens (Tomita)."""
    return rs.masked_softmax(e, mask & (distance(e) < 100))


@rs.attention(trains=False)
def without_377(e, mask, p):
    """All but five keys. RoPE's three fastest angles make almost whole turns in 377 tokens: 60, 18.97 and 6."""
    return rs.masked_softmax(e, mask & ((distance(e) - 377).abs() > 2))


@rs.attention(trains=False)
def without_357(e, mask, p):  # five others, to compare with
    return rs.masked_softmax(e, mask & ((distance(e) - 357).abs() > 2))


@rs.attention(trains=False)
def fewer(e, mask, p):  # one in four of all that `near` leaves out, 377 tokens among them
    return rs.masked_softmax(e, mask & ((distance(e) < 100) | (distance(e) * 31 % 97 % 4 == 3)))
