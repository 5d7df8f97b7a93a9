"""Two tokens that a model does not tell apart: what betrays them, and what they cost.

A model that gives tokens i and j the same logit at every state errs wherever one of them is present and the other is
not. That is so at a share 2 s (v-s) / (v (v-1)) of the states of length s; p* differs by 1 / (v-s) between the two, so
the TVD there is at least half of that.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

MERGED = 0.1
"""Two tokens are merged if their exchange gap is below this share of the mean over all pairs."""
ROUNDING = 1e-6
"""Weights are in single precision: so much of the largest entry of D is no gap."""


def exchange_gaps(D: NDArray[Any]) -> NDArray[Any]:
    """How well attention tells the tokens of each pair apart, [..., V (V-1) / 2]; in normal form delta_i + delta_j.

    Where i is present and j is absent, D[i, j] - D[i, i] is what attention to i adds to logit j less logit i. All other
    tokens add D[k, j] - D[k, i], of opposite sign where i and j change places. What is left of the two cases is the
    exchange gap D[i, j] - D[i, i] + D[j, i] - D[j, j].
    """
    own = np.diagonal(D, axis1=-2, axis2=-1)
    gap = D + np.swapaxes(D, -1, -2) - own[..., :, None] - own[..., None, :]
    i, j = np.triu_indices(D.shape[-1], 1)
    return gap[..., i, j]


def merged_pairs(D: NDArray[Any]) -> NDArray[np.int64]:
    """How many pairs of tokens a model does not tell apart, or the wrong way round, [...]; 0 where D is not finite."""
    gaps = exchange_gaps(D)
    rounding = ROUNDING * np.abs(D).max((-2, -1))  # of a model that takes all tokens for one
    return (gaps <= np.maximum(MERGED * gaps.mean(-1), rounding)[..., None]).sum(-1)


def least_merged_tvd(v: int, s: int) -> Fraction:
    """The smallest mean TVD at length s with one merged pair: the two share equally what is due to the absent one."""
    return Fraction(s, v * (v - 1))


def hidden_merged_tvd(v: int, s: int) -> Fraction:
    """The mean TVD at length s if both tokens of the pair count as present as soon as one of them is."""
    return (1 if s == v - 1 else 2) * least_merged_tvd(v, s)


def enumerated_merged_tvd(v: int, s: int) -> tuple[Fraction, Fraction]:
    """Both of the above, from the distributions of models that merge tokens 0 and 1 and else are right, set by set."""
    sets = [set(present) for present in combinations(range(v), s)]
    least = hidden = Fraction(0)
    for present in sets:
        absent = [w for w in range(v) if w not in present]
        p_star = [Fraction(w in absent, len(absent)) for w in range(v)]
        shared = [(p_star[0] + p_star[1]) / 2] * 2 + p_star[2:]
        others = [w for w in absent if w > 1]
        split = len({0, 1} & present) == 1
        # with nothing else absent the two are all that is left
        kept = [Fraction(w in others, len(others)) for w in range(v)] if split and others else shared
        least += _tvd(shared, p_star)
        hidden += _tvd(kept, p_star)
    return least / len(sets), hidden / len(sets)


def _tvd(p: list[Fraction], q: list[Fraction]) -> Fraction:
    return sum((abs(x - y) for x, y in zip(p, q, strict=True)), Fraction(0)) / 2
