"""The normal form of a solution of Set Complement under constant attention.

    D[u,w] = a_u + c_w - delta_u [u = w]          B[t,w] = beta_t - c_w - eps_t [t = w]

Precision at lengths 1 and 2 forces it for v >= 4. In this form every absent token has the logit beta_t + mean a, an
earlier token u stands delta_u / s below it, and the last token t stands eps_t + delta_t / s below it.

One freedom remains: a + k, c - k, beta - k give the same (B, D). We choose sum_w c_w = 0. delta and eps do not depend
on that choice. Nor do they change with what constant attention and the softmax cannot see: a constant added to a row
of B or D, and a vector c moved from the columns of B to those of D.

Shapes: M models (or any leading axes), V tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resharpen.errors import UserError

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class NormalForm:
    """Least-squares fit of the form, each vector [..., V], and what it leaves over, each [...].

    residual          |(B, D) - fit| / |(B, D)|, Frobenius norms over both matrices together
    gauged_residual   the same distance relative to the distance of (B, D) from delta = eps = 0: what is left of the
                      part that matters to the output. At least as large as `residual`.
    """

    a: Array
    c: Array
    beta: Array
    delta: Array
    eps: Array
    residual: Array
    gauged_residual: Array

    def matrices(self) -> tuple[Array, Array]:
        """The (B, D) of this form, [..., V, V]."""
        return compose(self.a, self.c, self.beta, self.delta, self.eps)

    def gap(self, s: int) -> Array:
        """The smallest gap at length s, min over t of min(delta_t, s eps_t + delta_t) / s; at length 1 the latter."""
        last = self.eps + self.delta / s
        return last.min(-1) if s == 1 else np.minimum(last, self.delta / s).min(-1)


def compose(a: Array, c: Array, beta: Array, delta: Array, eps: Array) -> tuple[Array, Array]:
    """(B, D) from the parameters of the form, any leading axes; exact on fractions."""
    eye = np.eye(a.shape[-1], dtype=int)
    D = a[..., :, None] + c[..., None, :] - delta[..., :, None] * eye
    B = beta[..., :, None] - c[..., None, :] - eps[..., :, None] * eye
    return B, D


def fit_normal_form(B: Array, D: Array) -> NormalForm:
    """The form nearest to (B, D) in Frobenius norm, in closed form; needs v >= 3. B and D are [..., V, V].

    delta and eps take up the diagonals. Off the diagonal D and -B are both a row constant plus the same c, so c is
    the column effect of H = (D - B) / 2 in a two-way layout without diagonal. With R, K the off-diagonal row and
    column sums of H and T their total, the normal equations under sum c = 0 give

        c_w = ((v-1) K_w + R_w - T) / (v (v-2)),   a_u = (row sum of D + c_u) / (v-1),   beta_t likewise with -c
    """
    v = B.shape[-1]
    if v < 3:
        raise UserError(f"v = {v}: the normal form needs at least 3 tokens")
    off = 1 - np.eye(v, dtype=int)
    H = (D - B) * off / 2
    R, K = H.sum(-1), H.sum(-2)
    c = ((v - 1) * K + R - R.sum(-1, keepdims=True)) / (v * (v - 2))
    a = ((D * off).sum(-1) + c) / (v - 1)
    beta = ((B * off).sum(-1) - c) / (v - 1)
    delta = a + c - _diagonal(D)
    eps = beta - c - _diagonal(B)
    fitted_B, fitted_D = compose(a, c, beta, delta, eps)
    left = _norm(B - fitted_B, D - fitted_D)
    return NormalForm(a, c, beta, delta, eps, _ratio(left, _norm(B, D)), _ratio(left, _distance_from_gauge(B, D)))


def _distance_from_gauge(B: Array, D: Array) -> Array:
    """Frobenius distance of (B, D) from {delta = eps = 0}: both row-centered, then c from the full two-way layout."""
    B, D = B - B.mean(-1, keepdims=True), D - D.mean(-1, keepdims=True)
    c = ((D - B) / 2).mean(-2, keepdims=True)
    return _norm(B + c, D - c)


def _diagonal(X: Array) -> Array:
    return np.diagonal(X, axis1=-2, axis2=-1)


def _norm(B: Array, D: Array) -> Array:
    return np.sqrt(np.asarray((B**2).sum((-2, -1)) + (D**2).sum((-2, -1)), dtype=np.float64))


def _ratio(left: Array, whole: Array) -> Array:
    """left / whole; 0 where there is nothing to explain, (B, D) = 0 being in form; NaN stays NaN."""
    return np.divide(left, whole, out=np.zeros_like(left), where=whole != 0)
