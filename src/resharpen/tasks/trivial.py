"""The best constant distribution at each length: the best prediction that ignores the input.

It depends on the metric and follows exactly from p*. Over the places of one length, weighted by how often they occur:

    kl         the mean of p*                               it minimizes the expected KL, and the loss
    tvd        the tau-quantile of p*_t for every token t, with the one tau for which they sum to 1
    error      the token that is most often the only legal one
    illegal    the token that is most often legal

(TVD: minimize sum_t E|q_t - p*_t| with sum q = 1. The derivative by q_t, P(p*_t < q_t) - P(p*_t > q_t), is the same for
all tokens at the minimum, so that q_t are quantiles at one level; at a jump any split is equally good.) Other metrics
get the best value of these four at each length. All are fitted to the report set: on a sample they are slightly better
than a constant on the whole distribution; if the set contains every state they are exact.

Shapes: N sequences, L positions, V tokens, P places.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resharpen.tasks.metrics import CERTAIN
from resharpen.tasks.task import Task

BEST_FOR = {"kl": (0,), "tvd": (1,), "error": (2,), "exact": (2,), "illegal": (3,)}
"""Metric -> which of the four is best; for other metrics all are tried."""
AT_ONCE = 2**20
"""Bound on places x tokens that are scored at once."""
MOST_SEQUENCES = 128
"""Number of sequences used; the first of a larger report set suffice, if they have all lengths."""


def trivial_values(task: Task, seed: int, metric: str | None = None) -> dict[str, dict[int, float]]:
    """Metric (or only this one) -> length -> the best value of a constant distribution on the report set. For a task
    without p*, and for an AUC, the value of a random guess."""
    return _values(task, task.own_metrics, task.report_sequences, seed, metric)


@lru_cache(maxsize=64)  # tasks are equal whatever their options
def _values(
    task: Task, _own: tuple[Any, ...], _sequences: int | None, seed: int, metric: str | None
) -> dict[str, dict[int, float]]:
    validation = task.validation(seed, "report")
    sampled = getattr(validation, "sampled", False) and hasattr(validation, "take")
    if sampled and validation.sequences > MOST_SEQUENCES:
        few = validation.take(slice(MOST_SEQUENCES))
        # questions are sorted by their number of items: the first ones are all of one length
        validation = few if set(few.length_P) == set(validation.length_P) else validation
    asked = [name for name in task.metrics if metric in (None, name)]
    guessed = {name: task.metrics[name].guess for name in asked if name != "tvd"}
    guessed = {name: value for name, value in guessed.items() if value is not None}
    lengths = task.reported_lengths or np.unique(validation.length_P).tolist()
    found = {name: dict.fromkeys(map(int, lengths), value) for name, value in guessed.items()}
    if hasattr(validation, "scored_NxL") and (rest := [name for name in asked if name not in found]):
        found |= _best_constants(task, validation, rest)
    return found


def _best_constants(task: Task, validation: Any, names: Sequence[str]) -> dict[str, dict[int, float]]:
    import torch

    pieces = list(validation.pieces(AT_ONCE // task.vocabulary))
    truths = [task.examples(piece).truth for piece in pieces]
    if "p_star" not in truths[0]:
        return {}
    p_PxV = np.concatenate([truth["p_star"] for truth in truths])
    weighted = hasattr(validation, "weight_NxL")
    weight_P = validation.weight_NxL[validation.scored_NxL] if weighted else np.ones(len(p_PxV))
    _, at_P = np.unique(validation.length_P, return_inverse=True)
    order = np.argsort(at_P, kind="stable")
    groups = np.split(order, np.cumsum(np.bincount(at_P))[:-1])
    kinds = list(dict.fromkeys(kind for name in names for kind in BEST_FOR.get(name, range(4))))
    constants_4xSxV = np.stack([constants(p_PxV[here], weight_P[here])[kinds] for here in groups], axis=1)
    measured: dict[str, list[NDArray[np.floating]]] = {}
    begin = 0
    for truth in truths:
        end = begin + len(truth["p_star"])
        with np.errstate(divide="ignore"):
            logits = torch.as_tensor(np.log(constants_4xSxV[:, at_P[begin:end]]))
        tensors = {name: torch.as_tensor(x) for name, x in truth.items()}
        further = {} if set(names) <= {"tvd"} else task.further_scores(logits, tensors)
        for name, x in {**task.score(logits, tensors), **further}.items():
            measured.setdefault(name, []).append(x.numpy())
        begin = end
    every = {name: np.concatenate(x, axis=1) for name, x in measured.items() if name != "marked"}
    found: dict[str, dict[int, float]] = {}
    for name, (by, values_4xS, count_S) in task.by_length(every, validation).items():
        if name in names:
            best = np.min if task.metrics[name].lower_is_better else np.max
            there = [(int(s), i) for i, s in enumerate(by) if count_S[i] > 0]
            found[name] = {length: float(best(values_4xS[:, i])) for length, i in there}
    return found


def constants(p_PxV: NDArray[np.float64], weight_P: NDArray[np.float64]) -> NDArray[np.float64]:
    """The four constant distributions, [4, V]."""
    share_P = weight_P / weight_P.sum()
    one = np.eye(p_PxV.shape[1])
    alone_P = p_PxV.max(1) > CERTAIN
    answer = one[(share_P[alone_P] @ (p_PxV[alone_P] > CERTAIN)).argmax()]
    legal = one[(share_P @ (p_PxV > 0)).argmax()]
    return np.stack([share_P @ p_PxV, best_for_tvd(p_PxV, share_P), answer, legal])


def best_for_tvd(p_PxV: NDArray[np.float64], share_P: NDArray[np.float64]) -> NDArray[np.float64]:
    """The constant with the smallest expected TVD: quantiles of every token's p* at one level, which sum to 1.

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

    low, high = 0, len(levels) - 1  # bisect for the first level at which they sum to 1 or more
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if quantiles(levels[middle]).sum() >= 1 - 1e-12 else (middle + 1, high)
    above_V = quantiles(levels[low])
    below_V = quantiles(levels[low - 1]) if low else np.zeros_like(above_V)
    jump = (above_V - below_V).sum()
    return below_V + (above_V - below_V) * ((1 - below_V.sum()) / jump if jump > 0 else 0.0)
