"""The native engine of Maximum Retrieval: the same state and results as the torch engine, within rounding.

The models of an ensemble lie one after the other: the state is one array [M, 4 parts, W] (theta, m, v, ema), W the
number of weights of a model, those with weight decay first and each tensor padded to whole vectors of 16.

Shapes: M models, W weights, N sequences, L positions, P scored sequences.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_int32, c_int64, c_uint32, c_void_p
from functools import cache

import numpy as np
from numpy.typing import NDArray

from resharpen.engines.base import ATTENTION, Arrays, Batches, Ensemble, Problem, initial_state
from resharpen.engines.native import build
from resharpen.engines.native.engine import HYPERPARAMETERS, PARTS
from resharpen.engines.native.library import LANES, aligned, pointer
from resharpen.models.retriever import Retriever, check_placement
from resharpen.optim.schedule import step_table
from resharpen.tasks.max_retrieval import MaxRetrieval, RetrievalSet

STEPS_AT_ONCE = 64
"""Steps in one call: a model takes them all before the next one does, so that its weights stay in the cache."""
ITEMS_AT_ONCE = 2**18
"""Bound on the items of a validation set that are in memory at a time."""
REMEDIES = ("softmax", "adaptive-temperature", "log-n")
"""What the kernel knows, in the order of its enumeration."""
TRAINED_WITH = ("softmax", "log-n")

Floats = NDArray[np.float32]


class Training(Structure):
    """Arguments of `train`, field by field as in kernels/retriever.cpp."""

    _fields_ = (
        ("state", c_void_p),
        ("diverged_at", c_void_p),
        ("hyperparameters", c_void_p),
        ("table", c_void_p),
        ("priority", c_void_p),
        ("kind", c_void_p),
        ("lengths", c_void_p),
        ("labels", c_void_p),
        ("first_step", c_int64),
        ("n_models", c_int32),
        ("n_steps", c_int32),
        ("batch", c_int32),
        ("length", c_int32),
        ("key", c_uint32 * 2),
        ("group", c_uint32),
        ("norm_in", c_int32),
        ("norm_out", c_int32),
        ("remedy", c_int32),
    )


@cache
def kernel(hidden: int, classes: int, march: str = "native") -> ctypes.CDLL:
    """The kernel for these sizes, built if need be and loaded."""
    library = ctypes.CDLL(str(build.kernel("retriever", {"H": hidden, "C": classes}, march)))
    pointers = [c_void_p] * 4
    library.train.argtypes = [POINTER(Training)]
    library.evaluate.argtypes = [
        *(c_void_p, c_int32, c_void_p, c_int32, c_int32, c_int32, c_int32, c_void_p, c_void_p, c_void_p, c_int64),
        *pointers[:3],
    ]
    library.sample.argtypes = [c_void_p, c_uint32, c_uint32, c_int32, c_int32, *pointers]
    library.gelu_of.argtypes = [c_int32, *pointers[:3]]
    for function in (library.train, library.evaluate, library.sample, library.gelu_of):
        function.restype = None
    return library


def supports(problem: Problem, training: bool = True) -> str:
    """Why the native engine cannot run a problem, or only read trained weights with it; empty if it can."""
    task, model = problem.task, problem.model
    if not isinstance(task, MaxRetrieval) or not isinstance(model, Retriever):
        return "this native engine knows the retriever on Maximum Retrieval"
    if model.hidden % LANES:
        return f"hidden = {model.hidden}: the native engine takes multiples of {LANES}"
    if not model.classes == task.classes <= LANES:
        return f"classes = {model.classes}: the native engine takes up to {LANES}, as many as the task has"
    if training and problem.attention not in TRAINED_WITH:
        return f"attention = {problem.attention}: the native engine trains retrievers with {' or '.join(TRAINED_WITH)}"
    return ""


class NativeRetriever:
    name = "native"

    def __init__(self, problem: Problem, ensemble: Ensemble, march: str = "native"):
        """`march` is the compiler's name of an instruction set."""
        if reason := supports(problem, training=False):
            raise ValueError(reason)
        check_placement(problem.placement)
        self.problem, self.ensemble = problem, ensemble
        model = problem.model
        assert isinstance(model, Retriever)
        self._kernel = kernel(model.hidden, model.classes, march)
        self._classes = model.classes
        self._shapes = model.matrices() | model.biases() | model.gains(problem.placement)
        n_models, n_weights = len(ensemble.draw_M), sum(padded_size(shape) for shape in self._shapes.values())
        self._state = aligned((n_models, len(PARTS), n_weights))
        hyper_MxH = np.stack([ensemble.hyperparameters[name] for name in HYPERPARAMETERS], axis=1)
        self._hyper = np.ascontiguousarray(hyper_MxH, np.float32)
        self.load(initial_state(problem, ensemble))

    def dump(self) -> Arrays:
        state: Arrays = {"step": np.array([self._step]), "diverged_at": self._diverged_at.copy()}
        for i, part in enumerate(PARTS):
            state |= {f"{part}.{name}": x for name, x in self._unpacked(self._state[:, i]).items()}
        return state | {f"theta_0.{name}": x.copy() for name, x in self._theta_0.items()}

    def load(self, arrays: Arrays) -> None:
        self._step = int(arrays["step"][0])
        self._diverged_at = np.array(arrays["diverged_at"], np.int64)
        self._theta_0 = {name: np.array(arrays[f"theta_0.{name}"], np.float32) for name in self._shapes}
        for i, part in enumerate(PARTS):
            self._pack({name: arrays[f"{part}.{name}"] for name in self._shapes}, self._state[:, i])

    def advance(self, n: int, batches: Batches | None = None) -> None:
        """Train for n steps, on the problem's own minibatches or on given ones."""
        if reason := supports(self.problem):
            raise ValueError(reason)
        if batches is None:
            for start in range(0, n, STEPS_AT_ONCE):
                self._train(min(STEPS_AT_ONCE, n - start), self.problem.batch, self.problem.train_length)
            return
        for priority_NxL, class_NxL, length_N, label_N in batches[:n]:
            check_items(class_NxL, length_N, label_N, self._classes)
            priority = np.ascontiguousarray(priority_NxL, np.float32)
            integers = [np.ascontiguousarray(x, np.int32) for x in (class_NxL, length_N, label_N)]
            self._train(1, *priority.shape, given=(priority, *integers))

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

    def _train(self, n: int, batch: int, length: int, given: tuple[NDArray, ...] | None = None) -> None:
        table = step_table(self.ensemble.hyperparameters, self.problem.steps, self._step, n)
        columns = (table.learning_rate, table.correction1, table.correction2, table.ema_weight)
        rows_nxMx4 = np.stack(columns, axis=-1).astype(np.float32)
        arguments = Training(
            *map(pointer, (self._state, self._diverged_at, self._hyper, rows_nxMx4, *(given or ()))),
            first_step=self._step,
            n_models=len(self._state),
            n_steps=n,
            batch=batch,
            length=length,
            key=self.problem.batch_key,
            group=self.ensemble.group,
            **self._architecture(self.problem.attention),
        )
        self._kernel.train(ctypes.byref(arguments))
        self._step += n

    def _architecture(self, remedy: str) -> dict[str, int]:
        placement = self.problem.placement
        return {
            "norm_in": placement.block_in,
            "norm_out": placement.block_out,
            "remedy": REMEDIES.index(remedy),
        }

    def _score(
        self, weights: Arrays, validation: RetrievalSet, remedy: str | None, wanted: tuple[str, ...]
    ) -> dict[str, Floats]:
        n_models, n_sequences = len(self.ensemble.draw_M), len(validation.length_P)
        theta = aligned((n_models, self._state.shape[2]))
        self._pack(weights, theta)
        out = {name: np.empty((n_models, n_sequences), np.float32) for name in wanted}
        done = 0
        for piece in validation.pieces(ITEMS_AT_ONCE):
            begin_N, items, label_N = ragged(*self.problem.task.examples(piece))
            self._kernel.evaluate(
                pointer(theta),
                n_models,
                pointer(self._hyper),
                *self._architecture(remedy or self.problem.attention).values(),
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

    def _pack(self, tensors: Arrays, out_MxW: Floats) -> None:
        start = 0
        for name, shape in self._shapes.items():
            size = int(np.prod(shape))
            out_MxW[:, start : start + size] = np.reshape(tensors[name], (len(out_MxW), size))
            start += padded_size(shape)

    def _unpacked(self, state_MxW: Floats) -> Arrays:
        tensors, start = {}, 0
        for name, shape in self._shapes.items():
            tensors[name] = state_MxW[:, start : start + int(np.prod(shape))].reshape(-1, *shape).copy()
            start += padded_size(shape)
        return tensors


def sample(problem: Problem, group: int, step: int) -> tuple[NDArray, ...]:
    """A minibatch as the kernel draws it: priorities and classes [N, L], lengths and labels [N]."""
    n, length = problem.batch, problem.train_length
    priority, kinds = np.zeros((n, length), np.float32), np.zeros((n, length), np.int32)
    lengths, labels = np.zeros(n, np.int32), np.zeros(n, np.int32)
    key = np.array(problem.batch_key, np.uint32)
    arrays = map(pointer, (priority, kinds, lengths, labels))
    assert isinstance(problem.model, Retriever)
    kernel(problem.model.hidden, problem.model.classes).sample(pointer(key), group, step, n, length, *arrays)
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


def padded_size(shape: tuple[int, ...]) -> int:
    return -(-int(np.prod(shape)) // LANES) * LANES


def check_items(class_NxL: NDArray, length_N: NDArray, label_N: NDArray, classes: int) -> None:
    """The kernel indexes tables with what it is given."""
    real_NxL = np.arange(class_NxL.shape[1]) < np.asarray(length_N)[:, None]
    if not (np.all(length_N >= 1) and np.all(length_N <= class_NxL.shape[1])):
        raise ValueError(f"sequences have 1 to {class_NxL.shape[1]} items here")
    for found in (class_NxL[real_NxL], label_N):
        if np.any((found < 0) | (found >= classes)):
            raise ValueError(f"classes are 0..{classes - 1}")
