"""Exact arithmetic where floating point would leave doubt: ranks, and linear programs with a checked certificate."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

Integers = NDArray[np.int64]
Fractions = list[Fraction]

LARGEST_DENOMINATOR = 10_000
"""A rounded solution with a larger denominator than this would not be a vertex of our small programs."""


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
    new = {j: x for j, x in new.items() if x}
    factor = gcd(*new.values()) if new else 1
    return {j: x // factor for j, x in new.items()}


@dataclass(frozen=True)
class Optimum:
    """The exact value of a linear program, proved by a pair of rational solutions with the same value."""

    value: Fraction
    x: Fractions
    """Feasible: G x >= h, A x = 0; it reaches the value."""
    y: Fractions
    """Multipliers y >= 0 of G x >= h; with z they prove that nothing is below the value."""
    z: Fractions
    """Multipliers of A x = 0: c = G^T y + A^T z."""


def certified_minimum(c: Integers, G: Integers, h: Integers, A: Integers) -> Optimum | None:
    """min c.x over G x >= h, A x = 0, exactly; None if HiGHS finds no optimum or its solution is not confirmed.

    HiGHS solves in floating point; its primal and dual solutions are rounded to nearby fractions and then **checked
    in exact arithmetic**. If x is feasible, c = G^T y + A^T z with y >= 0 and c.x = h.y, then for every feasible x'

        c.x' = y.(G x') + z.(A x') >= y.h = c.x

    so the value is proved, whatever rounding errors the solver made.
    """
    solved = linprog(c, A_ub=-G, b_ub=-h, A_eq=A, b_eq=np.zeros(len(A)), bounds=(None, None), method="highs")
    if solved.status != 0:
        return None
    x, y, z = _rounded(solved.x), _rounded(-solved.ineqlin.marginals), _rounded(solved.eqlin.marginals)
    value = _dot(c, x)
    primal = all(gx >= b for gx, b in zip(_times(G, x), h, strict=True)) and not any(_times(A, x))
    combined = [gy + az for gy, az in zip(_times(G.T, y), _times(A.T, z), strict=True)]
    dual = min(y) >= 0 and combined == [int(entry) for entry in c] and _dot(h, y) == value
    return Optimum(value, x, y, z) if primal and dual else None


def is_descending_ray(ray: Fractions, c: Integers, G: Integers, A: Integers) -> bool:
    """Whether G r >= 0, A r = 0 and c.r < 0, exactly: from any feasible point, c.x falls without bound along r."""
    return min(_times(G, ray)) >= 0 and not any(_times(A, ray)) and _dot(c, ray) < 0


def _rounded(x: NDArray[np.float64]) -> Fractions:
    return [Fraction(float(value)).limit_denominator(LARGEST_DENOMINATOR) for value in x]


def _dot(row: Integers, x: Fractions) -> Fraction:
    return sum((int(row[j]) * x[j] for j in np.flatnonzero(row)), Fraction(0))


def _times(matrix: Integers, x: Fractions) -> Fractions:
    return [_dot(row, x) for row in matrix]
