"""The native engine: the same state and results as the torch engine, within rounding; float32 only.

An ensemble's sixteen lanes lie side by side in memory: the weights are one array [4 parts, W, 16] (theta, m, v, ema),
W the number of weights of a model. Lanes without a draw repeat the first draw and are dropped on the way out.

Shapes: M models, W weights, N sequences, L positions, P scored prefixes.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from resharpen.engines.base import Arrays, Batches, Ensemble, Problem, initial_state
from resharpen.engines.native import library
from resharpen.engines.native.library import LANES
from resharpen.models import POSITIONS, Minimal
from resharpen.optim.schedule import step_table
from resharpen.tasks import SetComplement, ValidationSet

PARTS = ("theta", "m", "v", "ema")
HYPERPARAMETERS = (
    "rms_epsilon",
    "one_minus_beta1",
    "one_minus_beta2",
    "weight_decay",
    "adam_epsilon",
    "max_gradient_norm",
)
"""In the order of the struct in kernels/adamw.h."""
STEPS_AT_ONCE = 2048
"""Steps in one call: their table of learning rates and so on is half a megabyte."""


def supports(problem: Problem, training: bool = True) -> str:
    """Why the native engine cannot run a problem; empty if it can. What it can train it can read, and no more."""
    if not isinstance(problem.task, SetComplement) or not isinstance(problem.model, Minimal):
        return "the native engine knows the minimal transformer on Set Complement"
    if problem.task.v > 32:
        return f"v = {problem.task.v}: the native engine keeps a set of tokens in 32 bits"
    if problem.attention != "softmax":
        return f"attention = {problem.attention}: the native engine trains minimal transformers with softmax"
    if problem.batch >= 2**16:
        return f"batch = {problem.batch}: the native engine counts up to 65,535 sequences"
    return ""


class NativeEngine:
    name = "native"

    def __init__(self, problem: Problem, ensemble: Ensemble, march: str = "native", merge: bool = True):
        """`march` is the compiler's name of an instruction set; `merge` counts equal prefixes once."""
        if reason := supports(problem):
            raise ValueError(reason)
        self.problem, self.ensemble, self._merge = problem, ensemble, merge
        model = problem.model
        self._library = _kernel(problem, march)
        self._shapes = {**model.matrices(), **model.gains(problem.placement)}
        self._n_weights = sum(int(np.prod(shape)) for shape in self._shapes.values())
        self._placement = np.array([getattr(problem.placement, position) for position in POSITIONS], np.uint8)
        self._state = library.aligned((len(PARTS), self._n_weights, LANES))
        self._hyper = library.aligned((len(HYPERPARAMETERS), LANES))
        self._hyper[:] = _lanes(np.stack([ensemble.hyperparameters[name] for name in HYPERPARAMETERS], axis=1)).T
        self.load(initial_state(problem, ensemble))

    def dump(self) -> Arrays:
        n_models = len(self.ensemble.draw_M)
        parts_MxPartsxW = np.ascontiguousarray(self._state.transpose(2, 0, 1)[:n_models])
        state: Arrays = {"step": np.array([self._step]), "diverged_at": self._diverged_at[:n_models].copy()}
        for name, (where, shape) in self._layout().items():
            for i, part in enumerate(PARTS):
                state[f"{part}.{name}"] = parts_MxPartsxW[:, i, where].reshape(n_models, *shape)
            state[f"theta_0.{name}"] = self._theta_0[name].copy()
        return state

    def load(self, arrays: Arrays) -> None:
        self._step = int(arrays["step"][0])
        self._diverged_at = _lanes(arrays["diverged_at"].astype(np.int64))
        self._theta_0 = {name: np.array(arrays[f"theta_0.{name}"], np.float32) for name in self._shapes}
        for i, part in enumerate(PARTS):
            self._pack({name: arrays[f"{part}.{name}"] for name in self._shapes}, self._state[i])

    def advance(self, n: int, batches: Batches | None = None) -> None:
        """Train for n steps, on the problem's own minibatches or on given ones."""
        if batches is None:
            while n > 0:
                chunk = min(n, STEPS_AT_ONCE)
                self._train(chunk, self.problem.batch, self.problem.train_length)
                n -= chunk
        else:
            for batch in batches[:n]:
                inputs_NxL, targets_NxL = batch
                _check_distinct(inputs_NxL)
                inputs, targets = (np.ascontiguousarray(x, np.int32) for x in (inputs_NxL, targets_NxL))
                self._train(1, *inputs.shape, inputs=inputs.ctypes.data, targets=targets.ctypes.data)

    def evaluate(self, weights: Arrays, validation: ValidationSet) -> NDArray[np.float32]:
        """TVD of every scored prefix, [M, P]."""
        theta = library.aligned((self._n_weights, LANES))
        self._pack(weights, theta)
        last_P, set_P, where_P = states(validation)
        tvd_PxLanes = library.aligned((len(last_P), LANES))
        arrays = (last_P, set_P, where_P, tvd_PxLanes)
        self._library.evaluate(
            *map(library.pointer, (theta, self._hyper, self._placement)), len(last_P), *map(library.pointer, arrays)
        )
        return np.ascontiguousarray(tvd_PxLanes.T[: len(self.ensemble.draw_M)])

    def examine(self, weights: Arrays, validation: ValidationSet) -> tuple[NDArray[np.float32], dict[str, NDArray]]:
        return self.evaluate(weights, validation), {}

    def _train(self, n: int, batch: int, length: int, inputs: int | None = None, targets: int | None = None) -> None:
        table = step_table(self.ensemble.hyperparameters, self.problem.steps, self._step, n)
        columns = (table.learning_rate, table.correction1, table.correction2, table.ema_weight)
        rows_nx4xLanes = library.aligned((n, len(columns), LANES))
        for i, column_nxM in enumerate(columns):
            rows_nx4xLanes[:, i] = _lanes(column_nxM.T).T
        arguments = library.Training(
            *map(library.pointer, (*self._state, self._diverged_at, self._hyper, rows_nx4xLanes)),
            inputs=inputs,
            targets=targets,
            first_step=self._step,
            n_steps=n,
            batch=batch,
            length=length,
            key=self.problem.batch_key,
            group=self.ensemble.group,
            placement=tuple(self._placement.tolist()),
            merge=self._merge,
        )
        self._library.train(ctypes.byref(arguments))
        self._step += n

    def _layout(self) -> dict[str, tuple[slice, tuple[int, ...]]]:
        """Where each tensor lies among a model's weights."""
        layout, start = {}, 0
        for name, shape in self._shapes.items():
            size = int(np.prod(shape))
            layout[name] = slice(start, start + size), shape
            start += size
        return layout

    def _pack(self, tensors: Arrays, out_WxLanes: NDArray[np.float32]) -> None:
        flat = [np.asarray(tensors[name], np.float32).reshape(len(tensors[name]), -1) for name in self._shapes]
        out_WxLanes[:] = _lanes(np.concatenate(flat, axis=1)).T


def _kernel(problem: Problem, march: str = "native") -> ctypes.CDLL:
    model = problem.model
    assert isinstance(model, Minimal)
    return library.minimal(model.vocabulary, model.d, model.d_k, model.d_v, march)


def sample(problem: Problem, group: int, step: int) -> NDArray[np.int32]:
    """The tokens of a minibatch as the kernel draws them, [N, L + 1]; the last one is only a target."""
    tokens = np.empty((problem.batch, problem.train_length + 1), np.int32)
    key = np.array(problem.batch_key, np.uint32)
    _kernel(problem).sample(key.ctypes.data, group, step, problem.batch, problem.train_length, tokens.ctypes.data)
    return tokens


@lru_cache(maxsize=8)
def states(validation: ValidationSet) -> tuple[NDArray[np.int32], NDArray[np.uint32], NDArray[np.int32]]:
    """Last token and set (as bits) of every scored prefix, sorted by both, and the place of each, [P]."""
    inputs, scored = validation.inputs_NxL, validation.scored_NxL
    set_NxL = np.bitwise_or.accumulate(np.uint32(1) << inputs.astype(np.uint32), axis=1)
    last_P, set_P = inputs[scored], set_NxL[scored]
    if (np.bitwise_count(set_P) != validation.length_P).any():
        raise ValueError("the native engine takes sequences of distinct tokens")
    where_P = np.lexsort((set_P, last_P))
    return last_P[where_P].astype(np.int32), set_P[where_P], where_P.astype(np.int32)


def _lanes(x_Mx: NDArray) -> NDArray:
    """A model axis of sixteen: lanes without a model repeat the first."""
    return np.concatenate([x_Mx, np.repeat(x_Mx[:1], LANES - len(x_Mx), axis=0)])


def _check_distinct(inputs_NxL: NDArray[np.int64]) -> None:
    if (np.diff(np.sort(inputs_NxL, axis=1), axis=1) == 0).any():
        raise ValueError("the native engine takes sequences of distinct tokens")
