"""The native engine of Maximum Retrieval: the same state and results as the torch engine, within rounding.

The models of an ensemble lie one after the other: the state is one array [M, 4 parts, W] (theta, m, v, ema), W the
number of weights of a model, those with weight decay first and each tensor padded to whole vectors of 16.

Shapes: M models, W weights, N sequences, L positions, P scored sequences.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import c_int32, c_int64, c_uint32, c_void_p
from functools import cache

import numpy as np
from numpy.typing import NDArray

from resharpen.engines.base import ATTENTION, Arrays, Batch, Ensemble, Problem
from resharpen.engines.native.base import (
    LANES,
    Floats,
    NativeEngine,
    Positions,
    load_kernel,
    one_after_another,
    pointer,
)
from resharpen.models import Model
from resharpen.models.retriever import Retriever, check_placement
from resharpen.tasks.max_retrieval import MaxRetrieval, RetrievalSet

ITEMS_AT_ONCE = 2**18
"""Bound on the items of a validation set that are in memory at a time."""
REMEDIES = ("softmax", "adaptive-temperature", "log-n")
"""What the kernel knows, in the order of its enumeration."""
TRAINED_WITH = ("softmax", "log-n")


@cache
def kernel(model: Model, march: str = "native") -> ctypes.CDLL:
    assert isinstance(model, Retriever)
    pointers = [c_void_p] * 4
    return load_kernel(
        "retriever",
        {"H": model.hidden, "C": model.classes},
        march,
        train=[c_int32, *pointers, c_int32, c_int32, c_void_p, c_uint32],
        evaluate=[
            *(c_void_p, c_int32, c_void_p, c_void_p, c_int32, c_int32, c_void_p, c_void_p, c_void_p, c_int64),
            *pointers[:3],
        ],
        sample=[c_void_p, c_uint32, c_uint32, c_int32, c_int32, *pointers],
        gelu_of=[c_int32, *pointers[:3]],
    )


class NativeRetriever(NativeEngine):
    kernel = staticmethod(kernel)
    STEPS_AT_ONCE = 64  # a model takes them all before the next one does, so that its weights stay in the cache

    def __init__(self, problem: Problem, ensemble: Ensemble, march: str = "native"):
        super().__init__(problem, ensemble, march)
        check_placement(problem.placement)
        self._remedy = problem.attention

    @staticmethod
    def supports(problem: Problem, training: bool = True) -> str:
        """Why this engine cannot train a problem, or not even read trained weights; empty if it can."""
        task, model = problem.task, problem.model
        if not isinstance(task, MaxRetrieval) or not isinstance(model, Retriever):
            return "this native engine knows the retriever on Maximum Retrieval"
        if model.hidden % LANES:
            return f"hidden = {model.hidden}: the native engine takes multiples of {LANES}"
        if not model.classes == task.classes <= LANES:
            return f"classes = {model.classes}: the native engine takes up to {LANES}, as many as the task has"
        if training and (remedy := problem.attention) not in TRAINED_WITH:
            return f"attention = {remedy}: the native engine trains retrievers with {' or '.join(TRAINED_WITH)}"
        return ""

    def evaluate(self, weights: Arrays, validation: RetrievalSet, remedy: str | None = None) -> Floats:
        """1 for a right and 0 for a wrong answer to every sequence, nan without finite logits, [M, P].

        `remedy` is that of training by default.
        """
        return self._score(weights, validation, remedy, ("correct",))["correct"]

    def attention(self, weights: Arrays, validation: RetrievalSet, remedy: str | None = None) -> tuple[Floats, Floats]:
        """Entropy in nats and largest weight of the attention in every sequence, [M, P] each."""
        found = self._score(weights, validation, remedy, ("entropy", "largest"))
        return found["entropy"], found["largest"]

    def examine(self, weights: Arrays, validation: RetrievalSet) -> tuple[Floats, dict[str, Floats]]:
        """Answers, and entropy and largest weight of attention, in one pass."""
        found = self._score(weights, validation, None, ("correct", "entropy", "largest"))
        return found["correct"], dict(zip(ATTENTION, (found["entropy"], found["largest"]), strict=True))

    def _layout(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Positions, int]:
        return one_after_another(shapes, LANES)

    def _train_own(self, n: int) -> None:
        self._train_on(n, self.problem.batch, self.problem.train_length)

    def _train_given(self, batch: Batch) -> None:
        priority_NxL, class_NxL, length_N, label_N = batch
        check_items(class_NxL, length_N, label_N, self.problem.task.vocabulary)
        priority = np.ascontiguousarray(priority_NxL, np.float32)
        integers = [np.ascontiguousarray(x, np.int32) for x in (class_NxL, length_N, label_N)]
        n, length = priority.shape
        self._train_on(1, n, length, (priority, *integers))

    def _train_on(self, n: int, batch: int, length: int, given: tuple[NDArray, ...] | None = None) -> None:
        arrays = [None] * 4 if given is None else map(pointer, given)
        remedy = REMEDIES.index(self._remedy)
        self._train(n, remedy, *arrays, batch, length, pointer(self._key), self.ensemble.group)

    def _score(
        self, weights: Arrays, validation: RetrievalSet, remedy: str | None, wanted: tuple[str, ...]
    ) -> dict[str, Floats]:
        theta_MxW, n_sequences = self._packed(weights), len(validation.length_P)
        out = {name: np.empty((self._n_models, n_sequences), np.float32) for name in wanted}
        done = 0
        for piece in validation.pieces(ITEMS_AT_ONCE):
            begin_N, items, label_N = ragged(*self.problem.task.examples(piece))
            self._kernel.evaluate(
                pointer(theta_MxW),
                self._n_models,
                *map(pointer, (self._hyper_RxH, self._placement)),
                REMEDIES.index(remedy or self._remedy),
                len(label_N),
                *map(pointer, (begin_N, items, label_N)),
                n_sequences,
                *(
                    out[name].ctypes.data + 4 * done if name in out else None
                    for name in ("correct", "entropy", "largest")
                ),
            )
            done += len(label_N)
        return out


def sample(problem: Problem, group: int, step: int) -> tuple[NDArray, ...]:
    """A minibatch as the kernel draws it: priorities and classes [N, L], lengths and labels [N]."""
    n, length = problem.batch, problem.train_length
    priority, kinds = np.zeros((n, length), np.float32), np.zeros((n, length), np.int32)
    lengths, labels = np.zeros(n, np.int32), np.zeros(n, np.int32)
    key = np.array(problem.batch_key, np.uint32)
    arrays = map(pointer, (priority, kinds, lengths, labels))
    kernel(problem.model).sample(pointer(key), group, step, n, length, *arrays)
    return priority, kinds, lengths, labels


ITEM = np.dtype([("priority", np.float32), ("kind", np.int32)])


def ragged(
    priority_NxL: Floats, class_NxL: NDArray[np.int64], length_N: NDArray[np.int64], label_N: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray, NDArray[np.int32]]:
    """Where each sequence begins, [N + 1], its real items one after the other, and the labels."""
    real_NxL = np.arange(priority_NxL.shape[1]) < length_N[:, None]
    items = np.empty(int(length_N.sum()), ITEM)
    items["priority"], items["kind"] = priority_NxL[real_NxL], class_NxL[real_NxL]
    begin = np.concatenate([[0], np.cumsum(length_N)]).astype(np.int32)
    return begin, items, np.ascontiguousarray(label_N, np.int32)


def check_items(class_NxL: NDArray, length_N: NDArray, label_N: NDArray, classes: int) -> None:
    """The kernel indexes tables with what it is given."""
    real_NxL = np.arange(class_NxL.shape[1]) < np.asarray(length_N)[:, None]
    if not (np.all(length_N >= 1) and np.all(length_N <= class_NxL.shape[1])):
        raise ValueError(f"sequences have 1 to {class_NxL.shape[1]} items here")
    for found in (class_NxL[real_NxL], label_N):
        if np.any((found < 0) | (found >= classes)):
            raise ValueError(f"classes are 0..{classes - 1}")
