"""The worst state of a length under constant attention, for any (B, D) and any v, without visiting all states.

Shapes: T, U, W, I are tokens: the last, a present, an absent one, any of the set S.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from resharpen.analysis.theory.normal_form import Matrix


def worst_gap(B: Matrix, D: Matrix, s: int) -> Any:
    """The smallest gap at length s under constant attention, for any (B, D) and any v, without enumeration.

    For a last token t, a present u and an absent w, f_w - f_u = B[t,w] - B[t,u] + 1/s sum_{i in S} (D[i,w] - D[i,u]).
    S must hold t and u and must not hold w; its other tokens are free, so the worst S takes the smallest summands.
    """
    v = len(B)
    x_IxWxU = D[:, :, None] - D[:, None, :]
    token = np.arange(v)
    gaps = []
    for t in range(v):
        for u in range(v):
            free = s - len({t, u})
            if free < 0:
                continue
            for w in token[(token != t) & (token != u)]:
                x_I = x_IxWxU[:, w, u]
                others = np.sort(np.delete(x_I, [t, u, w]))[:free]
                forced = x_I[t] if t == u else x_I[t] + x_I[u]
                gaps.append(B[t, w] - B[t, u] + (forced + others.sum()) / s)
    return min(gaps)


def worst_spread(B: Matrix, D: Matrix, s: int) -> Any:
    """The largest difference between the logits of two absent tokens at length s, found as in `worst_gap`."""
    v = len(B)
    if s > v - 2:
        return B[0, 0] - B[0, 0]  # at most one token is absent; zero in the arithmetic of B
    x_IxWxU = D[:, :, None] - D[:, None, :]
    spreads = []
    for t, w, w2 in ((t, w, w2) for t in range(v) for w in range(v) for w2 in range(v) if len({t, w, w2}) == 3):
        x_I = x_IxWxU[:, w, w2]
        others = np.sort(np.delete(x_I, [t, w, w2]))[v - 3 - (s - 1) :]
        spreads.append(B[t, w] - B[t, w2] + (x_I[t] + others.sum()) / s)
    return max(spreads)
