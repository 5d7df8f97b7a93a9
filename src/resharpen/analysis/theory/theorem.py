"""Theorem 4.2 as linear algebra over the 2 v^2 entries of (B, D), under constant attention, in exact arithmetic.

Every statement about precision is a list of integer rows: s (f_w - f_u) at a state of length s is linear in the
unknowns x = (B, D). What precision at lengths 1 and 2 implies is therefore decided exactly, for each v, by ranks and
linear programs with rational certificates. C = 1 throughout: everything scales with C.

By symmetry one state stands for all of a length: a permutation of the tokens permutes the constraints.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from resharpen.analysis.theory.normal_form import compose
from resharpen.tasks.set_complement import states

Integers = NDArray[np.int64]
Fractions = list[Fraction]

LARGEST_DENOMINATOR = 10_000
"""Of solutions: vertices of our small programs have smaller denominators."""


def fractions(array: Any) -> NDArray[Any]:
    """The same numbers as an object array of fractions; a float is taken at its exact binary value."""
    array = np.asarray(array)
    return np.array([Fraction(x) for x in array.flat], dtype=object).reshape(array.shape)


def exact_rank(matrix: Any) -> int:
    """The rank over the rational numbers, by elimination on integers that are kept free of common factors.

    >>> exact_rank([[1, 2], [2, 4]]), exact_rank([[Fraction(1, 3), 0], [0, 1e-30]])
    (1, 2)
    """
    rows = [_integer_row(row) for row in fractions(matrix)]
    rank = 0
    while rows:
        pivot = rows.pop()
        column = min(pivot, default=None)
        if column is None:
            continue
        rank += 1
        rows = [_eliminate(row, pivot, column) if column in row else row for row in rows]
    return rank


def _integer_row(row: NDArray[Any]) -> dict[int, int]:
    """A row of fractions as {column: integer}, cleared of denominators and of zeros."""
    common = np.lcm.reduce([x.denominator for x in row])
    return {column: int(x * common) for column, x in enumerate(row) if x}


def _eliminate(row: dict[int, int], pivot: dict[int, int], column: int) -> dict[int, int]:
    p, q = pivot[column], row[column]
    new = {j: p * row.get(j, 0) - q * pivot.get(j, 0) for j in row.keys() | pivot.keys()}
    factor = gcd(*new.values())
    return {j: x // factor for j, x in new.items() if x}


@dataclass(frozen=True)
class Optimum:
    """The exact value of a linear program, and the solutions of it and of its dual that prove it."""

    value: Fraction
    x: Fractions
    y: Fractions


def certified_minimum(c: Integers, G: Integers, h: Integers, A: Integers) -> Optimum | None:
    """min c.x over G x >= h, A x = 0, exactly; None if HiGHS finds no optimum or its solution is not confirmed.

    HiGHS solves in floating point; its primal and dual solutions are rounded to nearby fractions and then **checked
    in exact arithmetic**. If x is feasible, c = G^T y + A^T z with y >= 0 and c.x = h.y, then every feasible x' has

        c.x' = y.(G x') + z.(A x') >= y.h = c.x
    """
    solved = linprog(c, A_ub=-G, b_ub=-h, A_eq=A, b_eq=np.zeros(len(A)), bounds=(None, None), method="highs")
    if solved.status != 0:
        return None
    x, y, z = _rounded(solved.x), _rounded(-solved.ineqlin.marginals), _rounded(solved.eqlin.marginals)
    value = _dot(c, x)
    primal = all(gx >= b for gx, b in zip(_times(G, x), h, strict=True)) and not any(_times(A, x))
    combined = [gy + az for gy, az in zip(_times(G.T, y), _times(A.T, z), strict=True)]
    dual = min(y) >= 0 and combined == [int(entry) for entry in c] and _dot(h, y) == value
    return Optimum(value, x, y) if primal and dual else None


def is_descending_ray(ray: Fractions, c: Integers, G: Integers, A: Integers) -> bool:
    """Whether G r >= 0, A r = 0 and c.r < 0, exactly: from any feasible point, c.x falls without bound along r."""
    return min(_times(G, ray)) >= 0 and not any(_times(A, ray)) and _dot(c, ray) < 0


def _rounded(x: NDArray[np.float64]) -> Fractions:
    return [Fraction(float(value)).limit_denominator(LARGEST_DENOMINATOR) for value in x]


def _dot(row: Integers, x: Fractions) -> Fraction:
    return sum((int(row[j]) * x[j] for j in np.flatnonzero(row)), Fraction(0))


def _times(matrix: Integers, x: Fractions) -> Fractions:
    return [_dot(row, x) for row in matrix]


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
