"""Precision of a model on Set Complement, and the normal form of precise models under constant attention.

At a state (a set S of s present tokens, t the last of them) a model with logits f has

    gap    = min over absent w of f_w  -  max over present u of f_u
    spread = max over absent w of f_w  -  min over absent w of f_w

It has precision C at length s if every state of that length has gap > C and spread 0. Under constant attention

    f(S, t) = B[t] + 1/s sum_{i in S} D[i]

and the normal form of (B, D) is

    D[u,w] = a_u + c_w - delta_u [u = w]          B[t,w] = beta_t - c_w - eps_t [t = w]

Precision at lengths 1 and 2 forces it for v >= 4. In this form every absent token has the logit beta_t + mean a, an
earlier token u stands delta_u / s below it, and the last token t stands eps_t + delta_t / s below it.

One freedom remains: a + k, c - k, beta - k give the same (B, D). We choose sum_w c_w = 0. delta and eps do not depend
on that choice. Nor do they change with what constant attention and the softmax cannot see: a constant added to a row
of B or D, and a vector c moved from the columns of B to those of D.

A model that gives tokens i and j the same logit at every state merges them. It errs wherever one is present and the
other is not, at a share 2 s (v-s) / (v (v-1)) of the states of length s; p* differs by 1 / (v-s) between the two, so
the TVD there is at least half of that.

Shapes: M models, P states, V tokens; `...` any leading axes.
"""

from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resharpen.errors import UserError
from resharpen.metrics import Floats
from resharpen.tasks.set_complement import states

Matrix = NDArray[Any]
"""Floats, or an object array of fractions, which keeps every result below exact."""
MERGED = 0.1
"""Two tokens are merged if their exchange gap is below this share of the mean over all pairs."""
ROUNDING = 1e-6
"""Weights are float32: a gap below this share of the largest entry of D is rounding."""


def enumerated_precision(B: Matrix, D: Matrix, s: int) -> tuple[Any, Any]:
    """(smallest gap, largest spread) at length s under constant attention, by visiting every state."""
    gaps, spreads = [], []
    for tokens in states(len(B), s):
        f = B[tokens[-1]] + D[list(tokens)].sum(axis=0) / s
        absent = np.delete(f, tokens)
        gaps.append(absent.min() - f[list(tokens)].max())
        spreads.append(absent.max() - absent.min())
    return min(gaps), max(spreads)


def state_gaps(logits_MxPxV: Floats, present_PxV: NDArray[np.bool_]) -> Floats:
    """The gap of every state, [M, P]."""
    lowest_absent = np.where(present_PxV, np.inf, logits_MxPxV).min(-1)
    return lowest_absent - np.where(present_PxV, logits_MxPxV, -np.inf).max(-1)


@dataclass(frozen=True, eq=False)
class NormalForm:
    """Least-squares fit of the form, each vector [..., V], and what it leaves over, each [...].

    residual          |(B, D) - fit| / |(B, D)|, Frobenius norms over both matrices together
    gauged_residual   the same distance relative to the distance of (B, D) from delta = eps = 0: what is left of the
                      part that matters to the output. At least as large as `residual`.
    """

    a: Matrix
    c: Matrix
    beta: Matrix
    delta: Matrix
    eps: Matrix
    residual: Matrix
    gauged_residual: Matrix


def compose(a: Matrix, c: Matrix, beta: Matrix, delta: Matrix, eps: Matrix) -> tuple[Matrix, Matrix]:
    """(B, D) from the parameters of the form, any leading axes; exact on fractions."""
    eye = np.eye(a.shape[-1], dtype=int)
    D = a[..., :, None] + c[..., None, :] - delta[..., :, None] * eye
    B = beta[..., :, None] - c[..., None, :] - eps[..., :, None] * eye
    return B, D


def fit_normal_form(B: Matrix, D: Matrix) -> NormalForm:
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


def _distance_from_gauge(B: Matrix, D: Matrix) -> Matrix:
    """Frobenius distance of (B, D) from {delta = eps = 0}: both row-centered, then c from the full two-way layout."""
    B, D = B - B.mean(-1, keepdims=True), D - D.mean(-1, keepdims=True)
    c = ((D - B) / 2).mean(-2, keepdims=True)
    return _norm(B + c, D - c)


def _diagonal(X: Matrix) -> Matrix:
    return np.diagonal(X, axis1=-2, axis2=-1)


def _norm(B: Matrix, D: Matrix) -> Matrix:
    return np.sqrt(np.asarray((B**2).sum((-2, -1)) + (D**2).sum((-2, -1)), dtype=np.float64))


def _ratio(left: Matrix, whole: Matrix) -> Matrix:
    """left / whole; 0 where there is nothing to explain, (B, D) = 0 being in form; NaN stays NaN."""
    return np.divide(left, whole, out=np.zeros_like(left), where=whole != 0)


def exchange_gaps(D: Matrix) -> Matrix:
    """How well attention tells the tokens of each pair apart, [..., V (V-1) / 2]; in normal form delta_i + delta_j.

    Where i is present and j is absent, attention to i adds D[i, j] - D[i, i] to logit j less logit i. All other tokens
    add D[k, j] - D[k, i], with the opposite sign where i and j change places. The sum of the two cases is the exchange
    gap D[i, j] - D[i, i] + D[j, i] - D[j, j].
    """
    own = _diagonal(D)
    gap = D + np.swapaxes(D, -1, -2) - own[..., :, None] - own[..., None, :]
    i, j = np.triu_indices(D.shape[-1], 1)
    return gap[..., i, j]


def merged_pairs(D: Matrix) -> NDArray[np.int64]:
    """Number of pairs of tokens with no exchange gap, or a negative one, [...]; 0 where D is not finite."""
    gaps = exchange_gaps(D)
    rounding = ROUNDING * np.abs(D).max((-2, -1))  # matters for a model that merges all tokens
    return (gaps <= np.maximum(MERGED * gaps.mean(-1), rounding)[..., None]).sum(-1)


def least_merged_tvd(v: int, s: int) -> Fraction:
    """The smallest mean TVD at length s with one merged pair: both tokens get half of what is due to the absent one."""
    return Fraction(s, v * (v - 1))


def enumerated_merged_tvd(v: int, s: int) -> tuple[Fraction, Fraction]:
    """Mean TVD over all sets of length s of two models that merge tokens 0 and 1 and are right otherwise: one gives
    both half of what is due to the absent one, the other treats both as present as soon as one is."""
    sets = [set(present) for present in combinations(range(v), s)]
    least = hidden = Fraction(0)
    for present in sets:
        absent = [w for w in range(v) if w not in present]
        p_star = [Fraction(w in absent, len(absent)) for w in range(v)]
        shared = [(p_star[0] + p_star[1]) / 2] * 2 + p_star[2:]
        others = [w for w in absent if w > 1]
        split = len({0, 1} & present) == 1
        # where nothing else is absent, the two have all the probability
        kept = [Fraction(w in others, len(others)) for w in range(v)] if split and others else shared
        least += _tvd(shared, p_star)
        hidden += _tvd(kept, p_star)
    return least / len(sets), hidden / len(sets)


def _tvd(p: list[Fraction], q: list[Fraction]) -> Fraction:
    return sum((abs(x - y) for x, y in zip(p, q, strict=True)), Fraction(0)) / 2
