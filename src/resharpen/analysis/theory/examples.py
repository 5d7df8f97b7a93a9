"""Hand-written weights of minimal transformers, and how a norm after attention removes dispersion.

Weights have a leading model axis of one. Both models have constant attention (W_Q = W_K = 0), d = d_v = v - 1 and
d_k = 1. The simplex model has its values at the corners of a regular simplex in R^(v-1) and U = -kappa times the
corners. With gain 1 and epsilon 0, its attention output m is the mean of the s corners of the present tokens,
|m|^2 = (v-s) / (s (v-1)), and

    no norm                    gap kappa v / ((v-1) s)          falls like 1/s: dispersion
    RMSNorm on m               gap kappa v / sqrt(s (v-s))      at least 2 kappa at every length
    + residual lambda p_t      adds lambda kappa v / (v-1) to the gap at the last token only
    RMSNorm on lambda p_t + m  gap kappa v / sqrt(s (lambda^2 s (v-1) + (2 lambda + 1)(v-s))) at the earlier tokens

All of it depends only on the inner products of the corners, which are rational: `squared_gaps` is exact.
"""

from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import helmert

from resharpen.experiments.keeping.stored import StoredModel
from resharpen.experiments.specs.spec import Setting
from resharpen.models import Minimal
from resharpen.parts import PLACEMENTS, Parts
from resharpen.tasks import SetComplement
from resharpen.tasks.set_complement import states

Weights = dict[str, NDArray[np.float64]]


def hard_coded_weights(v: int, C: float = 1.0) -> Weights:
    """Example 4.1, for the placement `none`: E = (I | -1)^T, U = (-I | 0), W_V = v C I, W_O = I.

    In normal form delta_t = v C and eps_t = 1 for every t: the gap is 1 + v C at length 1 and v C / s from s = 2 on.
    """
    eye = np.eye(v - 1)
    E = np.vstack([eye, -np.ones(v - 1)])
    U = np.hstack([-eye, np.zeros((v - 1, 1))])
    return _with_constant_attention(v, E=E, W_V=v * C * eye, W_O=eye, U=U)


def hard_coded_model(v: int, C: float = 1.0) -> StoredModel:
    """Example 4.1 as a `StoredModel`, like one loaded from a run."""
    weights = {name: array[0].astype(np.float32) for name, array in hard_coded_weights(v, C).items()}
    setting, parts = Setting(SetComplement(v), v - 1, Minimal.usual(v)), Parts(PLACEMENTS["none"])
    return StoredModel(f"hard-coded/v{v}", setting, setting.model, parts, {}, weights, step=0)


def hard_coded_tvd(v: int, s: int, C: float = 1.0) -> float:
    """TVD of Example 4.1 at length s: the probability of the present tokens, the same at every state.

    The absent tokens share one logit; s - 1 tokens stand v C / s below it and the last one 1 + v C / s.
    """
    present = (s - 1 + np.exp(-1.0)) * np.exp(-v * C / s)
    return float(present / (v - s + present))


def corners(v: int) -> NDArray[np.float64]:
    """The v corners of a regular simplex in R^(v-1), [V, v-1]: unit norm, inner products -1/(v-1), sum zero."""
    return helmert(v).T * np.sqrt(v / (v - 1))


def simplex_weights(v: int, kappa: float = 1.0, residual: float = 1.0) -> Weights:
    """Values at the corners p_i of the simplex and U = -kappa p^T; the embedding is `residual` times the corners.

    No gains: a placement with norms needs them added (`with_gains`).
    """
    p, eye = corners(v), np.eye(v - 1)
    return _with_constant_attention(v, E=residual * p, W_V=eye / residual, W_O=eye, U=-kappa * p.T)


def with_gains(weights: Weights, model: Minimal, parts: Parts) -> Weights:
    """The weights with every norm gain at one."""
    gains = {name: p for name, p in model.parameters(parts).items() if p.start is not None}
    return weights | {name: np.ones((1, *map(int, gain.shape))) for name, gain in gains.items()}


def _with_constant_attention(v: int, **matrices: NDArray[np.float64]) -> Weights:
    zero = np.zeros((v - 1, 1))
    return {name: array[None] for name, array in ({"W_Q": zero, "W_K": zero} | matrices).items()}


def plain_gap(v: int, s: ArrayLike, kappa: ArrayLike = 1.0) -> NDArray[np.float64]:
    """kappa v / ((v-1) s): the attention path alone, without a norm."""
    return np.asarray(kappa) * v / ((v - 1) * np.asarray(s, dtype=np.float64))


def resharpened_gap(v: int, s: ArrayLike, kappa: ArrayLike = 1.0) -> NDArray[np.float64]:
    """kappa v / sqrt(s (v-s)) >= 2 kappa: the attention path alone, with an RMSNorm on the attention output."""
    return gap_after_sum(v, s, kappa, residual=0.0)


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
