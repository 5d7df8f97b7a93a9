"""Base of the native engines: state, hyperparameters and step tables in a kernel's layout, and calls into it.

A kernel stores the weights of a model as one array of X floats, including padding, which is and stays zero; the kernel
reports the offset of each weight of the common state (`contract.py`). Except for the padding, state and results are
those of the torch engine within rounding, in float32 only.

Shapes: R rows (models, and padding that a kernel needs), M models, X floats per model, S steps or arrays of the state.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from ctypes import POINTER, Structure
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from resharpen.engines.base import Batches, Ensemble, Measures, Problem, initial_state
from resharpen.engines.native import build, contract
from resharpen.engines.native.contract import (
    HYPERPARAMETERS,
    KERNEL_SITES,
    KNOWN,
    STEP_COLUMNS,
    PlacementStruct,
    TrainingStruct,
    VariantStruct,
)
from resharpen.models import Model
from resharpen.optim.adamw import adamw
from resharpen.optim.hyperparameters import TABLE
from resharpen.optim.schedule import step_table
from resharpen.parts import ATTENTIONS, DROPOUTS, NORMS, POSITIONS, SITES, Parts
from resharpen.state import Arrays
from resharpen.tasks import Batch, Task

LANES = 16
STATE = ("theta", "m", "v", "ema")
LEARNED = ("learned", "learned-offset")
"""Positions with a vector per position."""

Floats = NDArray[np.float32]


def variant_of(parts: Parts) -> VariantStruct:
    norms = PlacementStruct(**{site: getattr(parts.placement, site) for site in KERNEL_SITES})
    kinds = {kind: names.index(getattr(parts, kind).name) for kind, names in KNOWN.items()}
    learned = parts.longest if parts.positions.name in LEARNED else None
    return VariantStruct(norms, **kinds, window=parts.attention.window or 0, learned=learned or 0)


class NativeEngine:
    """A kernel, and the rows of models that it advances."""

    STEPS_AT_ONCE: ClassVar[int]
    """Maximum number of steps in one call of the kernel."""
    MEASURES: ClassVar[tuple[str, ...]]
    """Measures of the kernel, in the order of the arguments of its `evaluate`."""
    SCORES: ClassVar[tuple[Callable[..., Any], ...]]
    """The `Task.score` whose measures those are."""
    READS: ClassVar[tuple[str, ...]] = ()
    """Hyperparameters of parts that the kernel reads."""

    step: int

    def __init__(self, problem: Problem, ensemble: Ensemble):
        self._cannot_train = self.supports(problem)
        if self._cannot_train and (reason := self.supports(problem, training=False)):
            raise ValueError(reason)
        self.problem, self.ensemble = problem, ensemble
        self._measures = measured_alike(problem, self.MEASURES, self.SCORES)
        self._kernel = self.kernel(problem.model, problem.march)
        self._key = np.array(problem.batch_key, np.uint32)
        self._stream = pointer(self._key), ensemble.group  # what a kernel draws minibatches from
        parameters = problem.model.parameters(problem.parts)
        self._variant = variant_of(problem.parts)
        self._offsets, self._n_floats = contract.layout(problem.model.kind, self._kernel, self._variant, parameters)
        self._state_RxSxX = self._rows(len(STATE), self._n_floats)
        self._hyper_RxH = self._rows(len(HYPERPARAMETERS))
        self._hyper_RxH[:] = self._padded(np.stack([ensemble.hyperparameters[name] for name in HYPERPARAMETERS], 1))
        self.load(initial_state(problem, ensemble))

    @classmethod
    def supports(cls, problem: Problem, training: bool = True) -> str:
        """Why this engine cannot train a problem or, with training=False, measure trained weights; empty if it can.
        Measures it lacks are computed by torch at the end (`choose.measure_all`), but not at every checkpoint."""
        if reason := cls.why_not(problem, training):
            return reason
        for name in {**problem.optimizer.hyperparameters, **problem.parts.hyperparameters}:
            if name not in (*TABLE, *cls.READS):
                return f"it does not read the hyperparameter '{name}'"
        task, measured = problem.task, measured_alike(problem, cls.MEASURES, cls.SCORES)
        # a custom reduction may read every measure of the task
        needed = (task.metric,) if type(task).by_length is Task.by_length else task.measures
        missing = [name for name in needed if name not in measured] if training else []
        return f"it does not measure '{missing[0]}', which {task.name} selects checkpoints by" if missing else ""

    @property
    def built(self) -> str:
        return Path(self._kernel._name).stem

    @property
    def _n_models(self) -> int:
        return len(self.ensemble.draw_M)

    @property
    def diverged_at(self) -> NDArray[np.int64]:
        return self._diverged_at_R[: self._n_models].copy()

    def dump(self) -> Arrays:
        loss_M = self._loss_R[: self._n_models].copy()
        state: Arrays = {"step": np.array([self.step]), "diverged_at": self.diverged_at, "loss": loss_M}
        for name, where in self._offsets.items():
            for i, kept in enumerate(STATE):
                state[f"{kept}.{name}"] = np.ascontiguousarray(self._state_RxSxX[: self._n_models, i, where])
            state[f"theta_0.{name}"] = self._theta_0[name].copy()
        return state

    def load(self, arrays: Arrays) -> None:
        self.step = int(arrays["step"][0])
        self._diverged_at_R = self._padded(arrays["diverged_at"].astype(np.int64))
        self._loss_R = self._padded(arrays["loss"].astype(np.float64))
        self._theta_0 = {name: np.array(arrays[f"theta_0.{name}"], np.float32) for name in self._offsets}
        for i, kept in enumerate(STATE):
            self._pack({name: arrays[f"{kept}.{name}"] for name in self._offsets}, self._state_RxSxX[:, i])

    def advance(self, n: int, batches: Batches | None = None) -> None:
        """Train for n steps, on the problem's own minibatches or on given ones."""
        if self._cannot_train:
            raise ValueError(self._cannot_train)
        if batches is None:
            for start in range(0, n, self.STEPS_AT_ONCE):
                self._train_own(min(self.STEPS_AT_ONCE, n - start))
        else:
            for batch in batches[:n]:
                self._train_given(batch)

    def measure(self, weights: Arrays, validation: Any, report: bool = False) -> Measures:
        """The measures of the task that the kernel computes, at every place, [M, P] each."""
        found = self._measure(weights, validation, report)
        otherwise = set(self.problem.task.measures) - set(self._measures)
        return {name: values for name, values in found.items() if name not in otherwise}

    # ---- what a kernel decides ----

    @staticmethod
    def kernel(model: Model, march: str) -> ctypes.CDLL:
        raise NotImplementedError

    @staticmethod
    def why_not(problem: Problem, training: bool) -> str:
        """Why the kernel cannot train this model on this task with these parts, or measure it; empty if it can."""
        raise NotImplementedError

    def _measure(self, weights: Arrays, validation: Any, report: bool) -> Measures:
        raise NotImplementedError

    def _train_own(self, n: int) -> None:
        raise NotImplementedError

    def _train_given(self, batch: Batch) -> None:
        raise NotImplementedError

    def _rows(self, *shape: int) -> Floats:
        """Zeros [R, ...] in the memory layout of the kernel; here one row per model."""
        return aligned((self._n_models, *shape))

    # ---- what they share ----

    def _train(self, n: int, *arguments: Any) -> None:
        """Call `train` of the kernel for n steps; its first argument is common to all kernels."""
        problem, draws = self.problem, self.ensemble.hyperparameters
        table = step_table(adamw, problem.schedule, draws, problem.steps, self.step, n)
        table_RxSx4 = self._rows(n, len(STEP_COLUMNS))
        for i, column in enumerate(STEP_COLUMNS):
            table_RxSx4[..., i] = self._padded(table[column].T)
        floats = (self._state_RxSxX, self._hyper_RxH, table_RxSx4)
        state, hyperparameters, rows = (x.ctypes.data for x in floats)
        training = TrainingStruct(
            state,
            *map(pointer, (self._diverged_at_R, self._loss_R)),
            hyperparameters,
            rows,
            first_step=self.step,
            n_steps=n,
            n_models=self._n_models,
            variant=self._variant,
        )
        self._kernel.train(ctypes.byref(training), *arguments)
        self.step += n

    def _packed(self, weights: Arrays) -> Floats:
        theta_RxX = self._rows(self._n_floats)
        self._pack(weights, theta_RxX)
        return theta_RxX

    def _pack(self, tensors: Arrays, out_RxX: Floats) -> None:
        for name, where in self._offsets.items():
            out_RxX[:, where] = self._padded(tensors[name])

    def _padded(self, x_M: NDArray) -> NDArray:
        """Rows without a model repeat the first one."""
        missing = len(self._rows()) - len(x_M)
        return np.concatenate([x_M, np.repeat(x_M[:1], missing, axis=0)]) if missing else x_M


def measured_alike(problem: Problem, measures: Sequence[str], scores: Sequence[Callable[..., Any]]) -> tuple[str, ...]:
    """The measures of a task that a kernel computes exactly as the task defines them. A task may override a `score`
    that the kernel implements, so then both are compared on a few random logits."""
    task = problem.task
    names = tuple(name for name in task.measures if name in measures)
    known = next((c.score for c in type(task).__mro__ if issubclass(c, Task) and c.score in scores), None)
    if type(task).score is known or known is None or not names:
        return names if known else ()
    import torch

    some = task.examples(next(iter(task.validation(problem.seed, "selection").pieces(1))))
    truth = {name: torch.as_tensor(values) for name, values in some.truth.items()}
    shape = 2, int(some.scored.sum()), task.vocabulary
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    try:
        ours = known(task, logits, truth)
    except KeyError:  # the truth has other fields
        return ()
    own = task.score(logits, truth)
    both = [name for name in names if name in own and name in ours]
    return tuple(name for name in both if torch.allclose(own[name], ours[name], equal_nan=True))


def unknown_part(
    problem: Problem,
    attentions: Sequence[str],
    positions: Sequence[str] = ("nope",),
    norms: Sequence[str] = ("rms",),
    sites: Sequence[str] = KERNEL_SITES[:5],
    dropouts: Sequence[str] = ("no-dropout",),
) -> str:
    """The first part of a problem that a kernel does not support, with those that it does; empty if it supports all."""
    parts = problem.parts
    for what, part, there, names in (
        ("norm", parts.norm, NORMS, norms),
        ("attention", parts.attention, ATTENTIONS, attentions),
        ("positions", parts.positions, POSITIONS, positions),
        ("dropout", parts.dropout, DROPOUTS, dropouts),
        ("optimizer", problem.optimizer, {"adamw": adamw}, ("adamw",)),
    ):
        # a user's part may have the name of a built-in one
        if not any(part is there.get(name) for name in names):
            return f"it does not support the {what} '{part.name}', only {one_of(names)}"
    if parts.norm_at:
        return "it has one norm function for all sites"
    for site in SITES:
        if getattr(parts.placement, site) and site not in sites:
            return f"it does not support a norm at {site}, only at {one_of(sites)}"
    return ""


def one_of(names: Sequence[str]) -> str:
    """>>> one_of(["softmax", "log-n", "ssmax"])
    'softmax, log-n and ssmax'
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def load_kernel(
    name: str,
    sizes: Mapping[str, int],
    march: str,
    measures: Sequence[str],
    structs: Mapping[str, type[Structure] | np.dtype] | None = None,
    lanes: int = 1,
    **arguments: Sequence[Any],
) -> ctypes.CDLL:
    """The kernel for these sizes, built if necessary, with the C types of its arguments; `contract.Mismatch` if it does
    not agree with the Python side."""
    library = ctypes.CDLL(str(build.kernel(name, sizes, march)))
    contract.check(name, library, build.version(name), measures, structs or {}, lanes)
    for function, types in arguments.items():
        getattr(library, function).argtypes = [POINTER(TrainingStruct), *types] if function == "train" else types
        getattr(library, function).restype = None
    return library


def aligned(shape: tuple[int, ...]) -> Floats:
    """Zeros that start on a cache line, as kernels require of their vectors."""
    size = int(np.prod(shape))
    buffer = np.zeros(size + LANES, np.float32)
    start = -buffer.ctypes.data % 64 // 4
    return buffer[start : start + size].reshape(shape)


def pointer(array: NDArray) -> int:
    if not array.flags.c_contiguous:
        raise ValueError("kernels read contiguous arrays")
    return array.ctypes.data
