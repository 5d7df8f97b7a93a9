"""Models written down by hand, as weights of the package: dicts of arrays with a leading model axis of one.

Both have constant attention (W_Q = W_K = 0), d = d_v = v - 1 and d_k = 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import helmert

from resharpen.experiments.keeping.stored import StoredModel
from resharpen.experiments.specs.spec import Setting
from resharpen.models import Minimal
from resharpen.parts import PLACEMENTS, Parts
from resharpen.tasks import SetComplement

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
    """Example 4.1 as a model like one taken out of a run: callable, and a torch module."""
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
