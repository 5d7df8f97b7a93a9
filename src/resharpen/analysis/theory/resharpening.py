"""How a norm after attention undoes dispersion, in closed form.

Values at the corners of a regular simplex in R^(v-1), U = -kappa times the corners, constant attention, gain 1,
epsilon 0. m is the attention output, the mean of the s corners of the present tokens, and |m|^2 = (v-s) / (s (v-1)).

    no norm                    gap kappa v / ((v-1) s)          it falls like 1/s: dispersion
    RMSNorm on m               gap kappa v / sqrt(s (v-s))      at least 2 kappa at every length
    + residual lambda p_t      the last token gains lambda kappa v / (v-1) more, the others nothing
    RMSNorm on lambda p_t + m  gap kappa v / sqrt(s (lambda^2 s (v-1) + (2 lambda + 1)(v-s))) at the earlier tokens

Everything depends on the inner products of the corners alone, which are rational: `squared_gaps` is exact.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from resharpen.analysis.theory.precision import states


def plain_gap(v: int, s: ArrayLike, kappa: ArrayLike = 1.0) -> NDArray[np.float64]:
    """kappa v / ((v-1) s): the attention path alone, without a norm."""
    return np.asarray(kappa) * v / ((v - 1) * np.asarray(s, dtype=np.float64))


def resharpened_gap(v: int, s: ArrayLike, kappa: ArrayLike = 1.0) -> NDArray[np.float64]:
    """kappa v / sqrt(s (v-s)) >= 2 kappa: the attention path alone, with an RMSNorm on the attention output."""
    s = np.asarray(s, dtype=np.float64)
    return np.asarray(kappa) * v / np.sqrt(s * (v - s))


def last_token_bonus(v: int, kappa: float = 1.0, residual: float = 1.0) -> float:
    """lambda kappa v / (v-1): what a residual stream of lambda times the corners adds at the last token only."""
    return residual * kappa * v / (v - 1)


def gap_after_sum(v: int, s: ArrayLike, kappa: ArrayLike = 1.0, residual: float = 1.0) -> NDArray[np.float64]:
    """The gap at earlier tokens if the norm acts on lambda p_t + m, as in `post` and `pre-final`; the gap at the last
    token is 1 + lambda s times this. With lambda = 0 it is `resharpened_gap`; with lambda > 0 it falls with s."""
    s = np.asarray(s, dtype=np.float64)
    return np.asarray(kappa) * v / np.sqrt(s * (residual**2 * s * (v - 1) + (2 * residual + 1) * (v - s)))


def squared_gaps(v: int, s: int, residual: int | None = None) -> set[tuple[Fraction, Fraction]]:
    """(signed gap^2 without norm, signed gap^2 with RMSNorm) for kappa = 1 over all (state, absent, earlier), exactly.

    The norm acts on m, or on lambda p_t + m where `residual` is given. With Gram entries g the gap is <x, p_u - p_w>,
    and RMSNorm in R^(v-1) multiplies it by sqrt(v-1) / |x|. Length 1 has no earlier token: its last one is taken.
    """
    g = [[Fraction(1) if i == j else Fraction(-1, v - 1) for j in range(v)] for i in range(v)]
    found = set()
    for tokens in states(v, s):
        weight = dict.fromkeys(tokens, Fraction(1, s))
        weight[tokens[-1]] += residual or 0
        norm2 = sum(x * y * g[i][j] for i, x in weight.items() for j, y in weight.items())
        for w in (w for w in range(v) if w not in tokens):
            for u in tokens[:-1] or tokens:
                gap = sum((x * (g[i][u] - g[i][w]) for i, x in weight.items()), Fraction(0))
                found.add((gap * abs(gap), gap * abs(gap) * (v - 1) / norm2))
    return found
