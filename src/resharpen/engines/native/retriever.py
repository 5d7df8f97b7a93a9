"""Native engine of the retriever on Maximum Retrieval.

The state is one array [M, 4, W] (theta, m, v, ema); of the W weights of a model those with weight decay come first.

Shapes: M models, W weights with padding, N sequences, L positions, P scored sequences.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_uint32, c_void_p
from functools import cache

import numpy as np
from numpy.typing import NDArray

from resharpen.engines.base import Measures, Problem
from resharpen.engines.native.base import LANES, NativeEngine, load_kernel, pointer, unknown_part
from resharpen.models import Model, Retriever
from resharpen.state import Arrays
from resharpen.tasks import Batch, Items, MaxRetrieval
from resharpen.tasks.max_retrieval import RetrievalSet

ITEMS_AT_ONCE = 2**18
"""Maximum number of items of a validation set in memory at a time."""
TRAINED_WITH = ("softmax", "log-n", "ssmax")
READ_WITH = (*TRAINED_WITH, "adaptive-temperature")
MEASURES = ("accuracy", "entropy", "largest_weight")
ITEM = np.dtype([("priority", np.float32), ("kind", np.int32)])


@cache
def kernel(model: Model, march: str = "native") -> ctypes.CDLL:
    assert isinstance(model, Retriever)
    pointers = [c_void_p] * 4
    return load_kernel(
        "retriever",
        {"H": model.hidden, "C": model.classes},
        march,
        MEASURES,
        {"Item": ITEM},
        train=[*pointers, c_int32, c_int32, c_void_p, c_uint32],
        evaluate=[
            *(c_void_p, c_int32, c_void_p, c_void_p, c_int32, c_void_p, c_void_p, c_void_p, c_int64),
            *pointers[:3],
        ],
    )


class NativeRetriever(NativeEngine):
    kernel = staticmethod(kernel)
    MEASURES, SCORES = MEASURES, (MaxRetrieval.score,)
    STEPS_AT_ONCE = 64  # one model after another trains all of them, so that its weights stay in the cache

    @staticmethod
    def why_not(problem: Problem, training: bool) -> str:
        task, model = problem.task, problem.model
        if not isinstance(task, MaxRetrieval) or not isinstance(model, Retriever):
            return f"it supports the retriever on Maximum Retrieval, not on {task.name}"
        if training and type(task).batch is not MaxRetrieval.batch:
            return f"it samples minibatches of Maximum Retrieval, but {task.name} samples differently"
        if model.hidden % LANES:
            return f"hidden = {model.hidden}: it supports multiples of {LANES}"
        if task.classes > LANES:
            return f"classes = {task.classes}: it supports up to {LANES}"
        return unknown_part(problem, TRAINED_WITH if training else READ_WITH, sites=("block_in", "block_out"))

    def _measure(self, weights: Arrays, validation: RetrievalSet, report: bool) -> Measures:
        """Accuracy per sequence (1 or 0, nan without finite logits); for a report also entropy in nats and largest
        weight of the attention; [M, P] each."""
        wanted = MEASURES if report else MEASURES[:1]
        theta_MxW, n_sequences = self._packed(weights), len(validation.length_P)
        out = {name: np.empty((self._n_models, n_sequences), np.float32) for name in wanted}
        done = 0
        for piece in validation.pieces(ITEMS_AT_ONCE):
            examples = self.problem.task.examples(piece)
            check_items(examples.inputs, examples.truth["label"], self.problem.task.vocabulary)
            begin_N, items, label_N = ragged(examples.inputs, examples.truth["label"])
            self._kernel.evaluate(
                pointer(theta_MxW),
                self._n_models,
                pointer(self._hyper_RxH),
                ctypes.byref(self._variant),
                len(label_N),
                *map(pointer, (begin_N, items, label_N)),
                n_sequences,
                *(out[name].ctypes.data + 4 * done if name in out else None for name in MEASURES),
            )
            done += len(label_N)
        return out

    def _train_own(self, n: int) -> None:
        self._train(n, *[None] * 4, self.problem.batch, self.problem.train_length, *self._stream)

    def _train_given(self, batch: Batch) -> None:
        items, label_N = batch.inputs, batch.targets
        check_items(items, label_N, self.problem.task.vocabulary)
        priority = np.ascontiguousarray(items.priority, np.float32)
        integers = [np.ascontiguousarray(x, np.int32) for x in (items.kind, items.length, label_N)]
        n, length = priority.shape
        self._train(1, *map(pointer, (priority, *integers)), n, length, *self._stream)


def ragged(given: Items, label_N: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray, NDArray[np.int32]]:
    """Offset of each sequence, [N + 1], the concatenated real items, and the labels."""
    real_NxL = np.arange(given.kind.shape[1]) < given.length[:, None]
    items = np.empty(int(given.length.sum()), ITEM)
    items["priority"], items["kind"] = given.priority[real_NxL], given.kind[real_NxL]
    begin = np.concatenate([[0], np.cumsum(given.length)]).astype(np.int32)
    return begin, items, np.ascontiguousarray(label_N, np.int32)


def check_items(items: Items, label_N: NDArray, classes: int) -> None:
    """ValueError for input that the kernel, which does not check, could not index or interpolate."""
    class_NxL, length_N = items.kind, np.asarray(items.length)
    real_NxL = np.arange(class_NxL.shape[1]) < length_N[:, None]
    if not (np.all(length_N >= 1) and np.all(length_N <= class_NxL.shape[1])):
        raise ValueError(f"sequences have 1 to {class_NxL.shape[1]} items here")
    for found in (class_NxL[real_NxL], label_N):
        if np.any((found < 0) | (found >= classes)):
            raise ValueError(f"classes are 0..{classes - 1}")
    priority = np.asarray(items.priority)[real_NxL]
    if not np.all((priority >= 0) & (priority <= 1)):
        raise ValueError("priorities are 0 to 1")
