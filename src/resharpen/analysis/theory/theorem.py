"""Theorem 4.2 as linear algebra over the 2 v^2 entries of (B, D), under constant attention.

Every statement about precision is a list of integer rows: s (f_w - f_u) at a state of length s is linear in the
unknowns x = (B, D). So what precision at lengths 1 and 2 forces, allows and does not allow can be settled exactly, for
each v, by ranks and linear programs with rational certificates. C = 1 throughout: everything scales with C.

By symmetry one state stands for all of a length: a permutation of the tokens permutes the constraints.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from resharpen.analysis.theory.normal_form import compose, states
from resharpen.analysis.theory.rational import (
    Fractions,
    Integers,
    Optimum,
    certified_minimum,
    exact_rank,
    fractions,
    is_descending_ray,
)


def gap_row(v: int, tokens: tuple[int, ...], absent: int, other: int) -> Integers:
    """s (f_absent - f_other) = s (B[t,w] - B[t,u]) + sum_i (D[t_i,w] - D[t_i,u]) as coefficients of (B, D)."""
    row = np.zeros((2, v, v), dtype=np.int64)
    row[0, tokens[-1], absent] += len(tokens)
    row[0, tokens[-1], other] -= len(tokens)
    for token in tokens:
        row[1, token, absent] += 1
        row[1, token, other] -= 1
    return row.ravel()


def gap_rows(v: int, s: int) -> Integers:
    """Every (state, absent, present) of length s."""
    return np.array([gap_row(v, tokens, w, u) for tokens in states(v, s) for w in _absent(v, tokens) for u in tokens])


def equality_rows(v: int, s: int) -> Integers:
    """At every state of length s all absent tokens have the same logit."""
    rows = [
        gap_row(v, tokens, w, w2)
        for tokens in states(v, s)
        for w, w2 in zip(_absent(v, tokens), _absent(v, tokens)[1:], strict=False)
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, 2 * v * v)


def _absent(v: int, tokens: tuple[int, ...]) -> list[int]:
    return [w for w in range(v) if w not in tokens]


def _precise_up_to_2(v: int) -> tuple[Integers, Integers, Integers]:
    """G, h, A of precision (at least) 1 at lengths 1 and 2: G x >= h, A x = 0."""
    one, two = gap_rows(v, 1), gap_rows(v, 2)
    h = np.concatenate([np.full(len(one), 1), np.full(len(two), 2)])
    return np.concatenate([one, two]), h, np.concatenate([equality_rows(v, 1), equality_rows(v, 2)])


def free_dimensions(v: int) -> int:
    """Dimension of the (B, D) that satisfy the equalities of lengths 1 and 2.

    The normal form has 5v parameters and one gauge freedom, and satisfies them; so 5v - 1 means that it is forced.
    """
    equalities = np.concatenate([equality_rows(v, 1), equality_rows(v, 2)])
    return 2 * v * v - exact_rank(equalities)


def averaging_identity(v: int) -> bool:
    """Whether, exactly, for every (B, D): the mean gap at length 1 is the sum of the two mean gaps at length 2.

    The means run over every (state, absent token); at length 2 one is taken at the last token, one at the earlier.
    Precision C at length 2 therefore makes the mean gap at length 1 larger than 2C.
    """
    pairs, triples = v * (v - 1), v * (v - 1) * (v - 2)
    mean1 = fractions(gap_rows(v, 1).sum(axis=0)) / pairs
    mean2 = fractions(gap_rows(v, 2).sum(axis=0)) / (2 * triples)  # a row of length 2 is twice the gap
    return bool((mean1 == mean2).all())


def printed_slack(v: int, bound: int = 2) -> Optimum | None:
    """Theorem (c) as printed: minus the largest sigma with every gap of lengths 1, 2 >= 1 + sigma and every gap of
    length 1 <= bound - sigma. Strict inequalities can hold together only if that sigma is positive."""
    G, h, A = _precise_up_to_2(v)
    upper = -gap_rows(v, 1)
    G = np.concatenate([np.column_stack([G, -h]), np.column_stack([upper, np.full(len(upper), -1)])])
    h = np.concatenate([h, np.full(len(upper), -bound)])
    minimize = np.append(np.zeros(2 * v * v, dtype=np.int64), -1)
    return certified_minimum(minimize, G, h, np.column_stack([A, np.zeros(len(A), dtype=np.int64)]))


def corrected_minimum(v: int, s: int, last: bool) -> Optimum | None:
    """s times the smallest gap at length s, at the last or at an earlier token, under the corrected hypothesis:
    precision 1 at lengths 1 and 2, and the length-1 gap of t at most twice t's gap as the last token at length 2."""
    G, h, A = _precise_up_to_2(v)
    balance = [
        gap_row(v, (u, t), w, t) - gap_row(v, (t,), w, t)  # the first row is already twice the gap
        for u, t in states(v, 2)
        for w in _absent(v, (u, t))
    ]
    G, h = np.concatenate([G, balance]), np.concatenate([h, np.zeros(len(balance), dtype=np.int64)])
    return certified_minimum(_gap_at(v, s, last), G, h, A)


def bounded_minimum(v: int, s: int, bound: int) -> Optimum | None:
    """s times the smallest gap at the last token at length s, if instead no gap at length 1 is above `bound` >= 2."""
    G, h, A = _precise_up_to_2(v)
    upper = -gap_rows(v, 1)
    G, h = np.concatenate([G, upper]), np.concatenate([h, np.full(len(upper), -bound)])
    return certified_minimum(_gap_at(v, s, last=True), G, h, A)


def falls_without_bound(v: int, s: int) -> bool:
    """Precision 1 at lengths 1 and 2 alone: whether, exactly, the gap at length s has no lower bound.

    The ray is the normal form with delta = 2, eps = -1: its gaps are 1 at length 1 and 0, 1 at length 2, but 2/s - 1
    at the last token at length s. Added any number of times to delta = 2, eps = 0 it keeps the precision there.
    """
    G, h, A = _precise_up_to_2(v)
    start = _uniform(v, delta=2, eps=0)
    feasible = bool((G @ start >= h).all()) and not (A @ start).any()
    ray: Fractions = [Fraction(int(x)) for x in _uniform(v, delta=2, eps=-1)]
    return feasible and is_descending_ray(ray, _gap_at(v, s, last=True), G, A)


def _gap_at(v: int, s: int, last: bool) -> Integers:
    tokens = tuple(range(s))
    return gap_row(v, tokens, absent=s, other=s - 1 if last else 0)


def _uniform(v: int, delta: int, eps: int) -> Integers:
    zero, one = np.zeros(v, dtype=np.int64), np.ones(v, dtype=np.int64)
    return np.stack(compose(zero, zero, zero, delta * one, eps * one)).ravel()
