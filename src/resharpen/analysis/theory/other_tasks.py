"""Models written down by hand for majority, weighted-complement and recall, and the closed forms of their gaps.

Majority and weighted-complement: a minimal transformer with constant attention, whose values are the corners p_i of a
regular simplex (`examples`), and one more coordinate, the last one. With item i occurring c_i times among n, the
attention output is m = sum c_i p_i / L over L tokens.

Recall: two attention layers. The first gives every value the key before it; the second looks up the queried key.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from resharpen.analysis.theory.examples import Weights, corners, with_gains
from resharpen.models import Minimal
from resharpen.parts import PLACEMENTS, Parts
from resharpen.tasks import Recall, WeightedComplement

Floats = NDArray[np.float64]
EPSILON = 1e-12
"""Of the norms: far below the size of any attention output here, and far above what rounding leaves of zero."""
NEVER = -100.0
"""The logit of BOS and SEP."""


def majority_weights(v: int, kappa: float = 1.0) -> Weights:
    """Majority on v tokens: values p_i and U = kappa p^T. SEP alone has the last coordinate, which excludes BOS and SEP
    as answers."""
    p = corners(v)
    E, U = np.zeros((v + 2, v)), np.zeros((v, v + 2))
    E[:v, :-1], E[-1, -1] = p, 1.0
    U[:-1, :v], U[-1, v:] = kappa * p.T, NEVER
    return _constant_attention(E, U, np.eye(v, v - 1))


def majority_gap(v: int, counts: Sequence[int], kappa: float = 1.0, normed: bool = False) -> Floats:
    """The logit of the most frequent item minus that of each token:

    without a norm          kappa v (c_max - c_i) / ((v-1) (n+2))
    with RMSNorm on m       kappa v (c_max - c_i) / sqrt((v-1) S),  S = sum_i (c_i - n/v)^2
    """
    c = np.asarray(counts, np.float64)
    n, away = c.sum(), c.max() - c
    if not normed:
        return kappa * v * away / ((v - 1) * (n + 2))
    S = ((c - n / v) ** 2).sum()
    return kappa * v * away / np.sqrt((v - 1) * S) if S > 0 else away


def majority_bound(v: int, n: int, kappa: float = 1.0) -> float:
    """No token that is not an answer has a smaller gap with RMSNorm, among n items: attained where n is odd, and by
    every question for v = 2, where it is kappa sqrt(8)."""
    return kappa * v / float(np.sqrt((v - 1) * ((n * n + 1) / 2 - n * n / v)))


def weighted_weights(task: WeightedComplement, kappa: float = 1.0) -> Weights:
    """Weighted-complement: the simplex model of Set Complement, and in the last coordinate, which is 1 in every
    embedding and which attention does not read, the logarithms of the weights."""
    v, p = task.v, corners(task.v)
    E = np.hstack([p, np.ones((v, 1))])
    return _constant_attention(E, np.vstack([-kappa * p.T, np.log(task.weight_V)]), np.eye(v, v - 1))


def post_power(v: int, s: ArrayLike) -> Floats:
    """The scale of the norm on the sum p_t + m + e of `weighted_weights`, e being the last coordinate: absent tokens
    have the probabilities of weights to this power. |p_t + m + e|^2 = 2 + 3 (v-s) / (s (v-1))."""
    s = np.asarray(s, np.float64)
    return np.sqrt(v / (2 + 3 * (v - s) / (s * (v - 1))))


def _constant_attention(E: Floats, U: Floats, W_V: Floats) -> Weights:
    zero = np.zeros((E.shape[1], 1))
    matrices = {"E": E, "W_Q": zero, "W_K": zero, "W_V": W_V, "W_O": W_V.T, "U": U}
    return {name: array[None] for name, array in matrices.items()}


def last_logits(weights: Weights, placement: str, tokens_NxL: ArrayLike) -> Floats:
    """Logits of the package's own model after whole sequences, [N, V]."""
    import torch

    _, v, d = weights["E"].shape
    model, parts = Minimal(v, d, 1, weights["W_V"].shape[-1]), Parts(PLACEMENTS[placement])
    theta = {name: torch.from_numpy(x) for name, x in with_gains(weights, model, parts).items()}
    hyper = {"rms_epsilon": torch.full((1,), EPSILON, dtype=torch.float64)}
    with torch.no_grad():
        return model.logits(theta, torch.as_tensor(np.asarray(tokens_NxL)), parts, hyper)[0, :, -1].numpy()


def recall_logits(task: Recall, inputs_NxL: NDArray[np.int64], sharp: float, slope: float = 20.0) -> Floats:
    """Logits of the values at every place, [N, L, values], of two attention layers with one-hot embeddings.

    Layer 1 attends to keys, with ALiBi: the nearest one, which of a value is the key before it. Layer 2 attends to
    values, by what layer 1 found there: `sharp` times its share of the key at the place.
    """
    places = np.arange(inputs_NxL.shape[1])
    is_key_NxL = inputs_NxL < task.keys
    keys_NxLxK = np.eye(task.vocabulary)[inputs_NxL][..., : task.keys]
    values_NxLxU = np.eye(task.vocabulary)[inputs_NxL][..., task.keys :]
    future_LxL = np.where(places > places[:, None], -np.inf, 0.0)
    nearest_NxLxL = 2 * slope * is_key_NxL[:, None] - slope * (places[:, None] - places) + future_LxL
    found_NxLxK = softmax(nearest_NxLxL, axis=2) @ keys_NxLxK
    match_NxLxL = sharp * keys_NxLxK @ found_NxLxK.transpose(0, 2, 1)
    read_NxLxL = softmax(match_NxLxL - 1e3 * is_key_NxL[:, None] + future_LxL, axis=2)
    return read_NxLxL @ values_NxLxU


def recall_gap(counts: Sequence[int], answer: int, sharp: float) -> Floats:
    """The logit of the answer minus that of each value, for one-hot attention in layer 1 and values that occurred so
    many times: (e^sharp - 1 + c_answer - c_u) / (e^sharp - 1 + sum c)."""
    c, more = np.asarray(counts, np.float64), np.exp(sharp) - 1
    gap = (more + c[answer] - c) / (more + c.sum())
    gap[answer] = 0.0
    return gap


def compare_recall(task: Recall, tokens_NxT: NDArray[np.int64], sharp: float) -> tuple[float, float]:
    """How far the logits of queries are from `recall_gap`, and the share of queries with a wrong most likely value."""
    inputs_NxL = tokens_NxT[:, :-1].clip(0)
    asked_NxL = task.answers(inputs_NxL) & (tokens_NxT[:, 1:] >= 0)
    logits_NxLxU, deviation, wrong = recall_logits(task, inputs_NxL, sharp), 0.0, []
    for row, place in zip(*np.nonzero(asked_NxL), strict=True):
        before = inputs_NxL[row, :place]
        counts = np.bincount(before[before >= task.keys] - task.keys, minlength=task.values)
        answer, found = int(tokens_NxT[row, place + 1]) - task.keys, logits_NxLxU[row, place]
        gap = recall_gap(counts.tolist(), answer, sharp)
        deviation = max(deviation, float(np.abs(found[answer] - found - gap).max()))
        wrong.append(found.argmax() != answer)
    return deviation, float(np.mean(wrong))
