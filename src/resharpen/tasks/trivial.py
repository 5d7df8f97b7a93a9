"""What can be had without looking at the input: the best constant distribution at each length.

What is best depends on the metric, and p* gives it exactly for each. Over the places of one length, weighted as they
occur:

    kl         the mean of p*                               it minimizes the expected KL, and the loss
    tvd        the tau-quantile of p*_t for every token t, with the one tau for which they sum to 1
    error      the token that is most often the only legal one
    illegal    the token that is most often legal

(TVD: minimize sum_t E|q_t - p*_t| with sum q = 1. The derivative by q_t, P(p*_t < q_t) - P(p*_t > q_t), is the same for
all tokens at the minimum, so that q_t are quantiles at one level; at a jump any split is equally good.) Every metric has
the best value that one of these four reaches at a length. They know the report set itself: on a sample they are a little
better than any constant is in general, and exact where the set is every state.

Shapes: N sequences, L positions, V tokens, P places.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from resharpen.tasks.metrics import CERTAIN
from resharpen.tasks.task import Task

MOST_SEQUENCES = 256
"""Of a larger report set the first ones will do."""


def trivial_values(task: Task, seed: int) -> dict[str, dict[int, float]]:
    """Metric -> length -> the best value of a constant distribution on the report set. Of a task without p*, what a guess
    reaches."""
    validation = task.validation(seed, "report")
    if getattr(validation, "sequences", 0) > MOST_SEQUENCES and hasattr(validation, "take"):
        validation = validation.take(slice(MOST_SEQUENCES))
    guesses = {name: about.guess for name, about in task.metrics.items() if about.guess is not None}
    if not hasattr(validation, "scored_NxL"):
        lengths = np.unique(validation.length_P).tolist()
        return {name: dict.fromkeys(lengths, value) for name, value in guesses.items()}
    return _best_constants(task, validation)


def _best_constants(task: Task, validation: Any) -> dict[str, dict[int, float]]:
    import torch

    truth = {name: torch.as_tensor(x) for name, x in task.examples(validation).truth.items()}
    if "p_star" not in truth:
        return {}
    p_PxV = truth["p_star"].numpy()
    weight_P = (
        validation.weight_NxL[validation.scored_NxL] if hasattr(validation, "weight_NxL") else np.ones(len(p_PxV))
    )
    # places of one length that are told apart by nothing but the input; a bin has many lengths
    place_P = validation.length_P
    constants_4xPxV = np.empty((4, *p_PxV.shape))
    for length in np.unique(place_P):
        here = place_P == length
        constants_4xPxV[:, here] = constants(p_PxV[here], weight_P[here])[:, None]
    with np.errstate(divide="ignore"):
        logits = torch.as_tensor(np.log(constants_4xPxV))
    measured = {**task.score(logits, truth), **task.further_scores(logits, truth)}
    values = task.by_length({name: x.numpy() for name, x in measured.items()}, validation)
    found: dict[str, dict[int, float]] = {}
    for name, (lengths, values_4xS, count_S) in values.items():
        if name in task.metrics:
            best = np.min if task.metrics[name].lower_is_better else np.max
            there = [(int(s), i) for i, s in enumerate(lengths) if count_S[i] > 0]
            found[name] = {length: float(best(values_4xS[:, i])) for length, i in there}
    return found


def constants(p_PxV: NDArray[np.float64], weight_P: NDArray[np.float64]) -> NDArray[np.float64]:
    """The four, [4, V]."""
    share_P = weight_P / weight_P.sum()
    one = np.eye(p_PxV.shape[1])
    alone_P = p_PxV.max(1) > CERTAIN
    answer = one[(share_P[alone_P] @ (p_PxV[alone_P] > CERTAIN)).argmax()]
    legal = one[(share_P @ (p_PxV > 0)).argmax()]
    return np.stack([share_P @ p_PxV, best_for_tvd(p_PxV, share_P), answer, legal])


def best_for_tvd(p_PxV: NDArray[np.float64], share_P: NDArray[np.float64]) -> NDArray[np.float64]:
    """The constant with the least expected TVD: quantiles of every token's p* at one level, which sum to 1.

    >>> best_for_tvd(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), np.full(3, 1 / 3)).tolist()
    [1.0, 0.0]
    """
    order_PxV = np.argsort(p_PxV, axis=0, kind="stable")
    sorted_PxV = np.take_along_axis(p_PxV, order_PxV, axis=0)
    reached_PxV = np.cumsum(share_P[order_PxV], axis=0)  # the level up to which a value is the quantile
    levels = np.unique(np.round(reached_PxV, 12))

    def quantiles(level: float) -> NDArray[np.float64]:
        at_V = np.minimum((reached_PxV < level - 1e-9).sum(0), len(p_PxV) - 1)
        return sorted_PxV[at_V, np.arange(p_PxV.shape[1])]

    low, high = 0, len(levels) - 1  # the first level at which they sum to 1 or more: at the last one they do
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if quantiles(levels[middle]).sum() >= 1 - 1e-12 else (middle + 1, high)
    above_V = quantiles(levels[low])
    below_V = quantiles(levels[low - 1]) if low else np.zeros_like(above_V)
    jump = (above_V - below_V).sum()
    return below_V + (above_V - below_V) * ((1 - below_V.sum()) / jump if jump > 0 else 0.0)
