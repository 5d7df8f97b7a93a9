"""Which far keys are it? Models of figure 4, trained on 100 tokens, read again without some of them.

    resharpen figure runs/fig4-overnight --attention examples/distances.py:near --out near

RoPE turns a pair of features by 10,000^(-2i / d_head) a token, here with heads of 16 features: what is far away may
look near to the fastest pairs. The three fastest make 60.00, 18.97 and 6.00 turns in 377 tokens.
"""

import torch

import resharpen as rs

DISTANCE = torch.arange(500)
FAR = DISTANCE >= 100
LIKENESS = (DISTANCE[:, None] * 10_000.0 ** (-torch.arange(3) / 8)).cos().mean(-1)
LIKEST = FAR & (LIKENESS[FAR].topk(100).values[-1] <= LIKENESS)
OTHERS = FAR & ~LIKEST & (FAR & ~LIKEST).cumsum(0).remainder(3).eq(0)


def without(left_out, e, mask):
    """Softmax over the keys that are at none of these distances."""
    position = torch.arange(e.shape[-1])
    distance = (position[:, None] - position).clamp(min=0)
    return rs.masked_softmax(e, mask & ~left_out[distance])


@rs.attention(trains=False)
def near(e, mask, p):
    """No further away than in training."""
    return without(FAR, e, mask)


@rs.attention(trains=False)
def unlike(e, mask, p):
    """Without the hundred distances beyond training that look nearest."""
    return without(LIKEST, e, mask)


@rs.attention(trains=False)
def fewer(e, mask, p):
    """Without a hundred others: as many keys less."""
    return without(OTHERS, e, mask)


@rs.attention(trains=False)
def not_377(e, mask, p):
    """Without five."""
    return without((DISTANCE - 377).abs() <= 2, e, mask)


@rs.attention(trains=False)
def not_357(e, mask, p):
    """Without five others."""
    return without((DISTANCE - 357).abs() <= 2, e, mask)
