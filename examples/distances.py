"""Which distant keys reduce the accuracy on long inputs? Score models of figure 4 again with some keys masked.

    resharpen figure runs/fig4-overnight --attention examples/distances.py:near --out near

The models were trained on at most 100 tokens. RoPE rotates pair i of features by 10,000^(-2i / d_head) radians per
token, here with heads of 16 features. A distant key may look adjacent to the fastest pairs: over 377 tokens the three
fastest make 60.00, 18.97 and 6.00 turns.
"""

import torch

import resharpen as rs

DISTANCE = torch.arange(500)
FAR = DISTANCE >= 100
LIKENESS = (DISTANCE[:, None] * 10_000.0 ** (-torch.arange(3) / 8)).cos().mean(-1)
LIKEST = FAR & (LIKENESS[FAR].topk(100).values[-1] <= LIKENESS)
OTHERS = FAR & ~LIKEST & (FAR & ~LIKEST).cumsum(0).remainder(3).eq(0)


def without(left_out, e, mask):
    """Softmax with the keys at these distances masked."""
    position = torch.arange(e.shape[-1])
    distance = (position[:, None] - position).clamp(min=0)
    return rs.masked_softmax(e, mask & ~left_out[distance])


@rs.attention(trains=False)
def near(e, mask, p):
    """Only keys at distances that occur in training."""
    return without(FAR, e, mask)


@rs.attention(trains=False)
def unlike(e, mask, p):
    """Without the hundred distances beyond training that RoPE aliases most."""
    return without(LIKEST, e, mask)


@rs.attention(trains=False)
def fewer(e, mask, p):
    """Without a hundred other distances, as a control."""
    return without(OTHERS, e, mask)


@rs.attention(trains=False)
def not_377(e, mask, p):
    """Without the five distances 375 to 379."""
    return without((DISTANCE - 377).abs() <= 2, e, mask)


@rs.attention(trains=False)
def not_357(e, mask, p):
    """Without the five distances 355 to 359, as a control."""
    return without((DISTANCE - 357).abs() <= 2, e, mask)
