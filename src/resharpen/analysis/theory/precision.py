"""The precision of a model: how far the logits of absent tokens stand above those of present ones.

At a state (a set S of s present tokens, t the last of them) a model with logits f has

    gap    = min over absent w of f_w  -  max over present u of f_u
    spread = max over absent w of f_w  -  min over absent w of f_w

It has precision C at length s if every state of that length has gap > C and spread 0. Under constant attention

    f(S, t) = B[t] + 1/s sum_{i in S} D[i]

and the worst state can be found without visiting all of them (`worst_gap`, `worst_spread`).

Shapes: M models, P states, V tokens; T, U, W, I are tokens too: the last, a present, an absent one, any of S.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resharpen.metrics import Floats
from resharpen.models import Minimal
from resharpen.parts import Parts
from resharpen.tasks import SetComplement

Matrix = NDArray[Any]
"""A v x v matrix of floats, or an object array of fractions, which keeps every result below exact."""


def states(v: int, s: int) -> Iterator[tuple[int, ...]]:
    """Every state of length s, as its tokens in ascending order with the last token moved to the end."""
    for last in range(v):
        for rest in combinations([t for t in range(v) if t != last], s - 1):
            yield (*rest, last)


def constant_attention_logits(B: Matrix, D: Matrix, tokens: tuple[int, ...]) -> Matrix:
    """f = B[t_s] + 1/s sum_i D[t_i]."""
    return B[tokens[-1]] + D[list(tokens)].sum(axis=0) / len(tokens)


def enumerated_precision(B: Matrix, D: Matrix, s: int) -> tuple[Any, Any]:
    """(worst gap, worst spread) at length s under constant attention, by visiting every state."""
    gaps, spreads = [], []
    for tokens in states(len(B), s):
        f = constant_attention_logits(B, D, tokens)
        absent = np.delete(f, tokens)
        gaps.append(absent.min() - f[list(tokens)].max())
        spreads.append(absent.max() - absent.min())
    return min(gaps), max(spreads)


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


def state_gaps(logits_MxPxV: Floats, present_PxV: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """(gap, spread) of every state, each [M, P], from logits and the tokens present in each state."""
    lowest_absent = np.where(present_PxV, np.inf, logits_MxPxV).min(-1)
    highest_absent = np.where(present_PxV, -np.inf, logits_MxPxV).max(-1)
    highest_present = np.where(present_PxV, logits_MxPxV, -np.inf).max(-1)
    return lowest_absent - highest_present, highest_absent - lowest_absent


def model_precision(
    model: Minimal, weights: Mapping[str, NDArray], parts: Parts, epsilon_M: Floats, task: SetComplement
) -> tuple[Floats, Floats]:
    """(worst gap, worst spread) of any minimal transformers at lengths 1 .. v-1, each [M, v-1], in double precision.

    Over every state where the task's validation set holds every state (v <= 9), else over its sample.
    """
    import torch

    validation = task.validation(seed=0, use="report")
    with torch.no_grad():
        theta = {name: torch.tensor(array, dtype=torch.float64) for name, array in weights.items()}
        epsilon = torch.tensor(epsilon_M, dtype=torch.float64)
        tokens = torch.as_tensor(validation.inputs_NxL)
        logits = model.logits(theta, tokens, parts, {"rms_epsilon": epsilon}).numpy()[:, validation.scored_NxL]
    present_PxV = task.p_star(validation.inputs_NxL)[validation.scored_NxL] == 0
    gap_MxP, spread_MxP = state_gaps(logits, present_PxV)
    at = [validation.length_P == s for s in range(1, task.v)]
    return np.stack([gap_MxP[:, m].min(1) for m in at], 1), np.stack([spread_MxP[:, m].max(1) for m in at], 1)
