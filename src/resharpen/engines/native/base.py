"""What the native engines share: the layout of weights, hyperparameters and step tables, and calls into a kernel.

A kernel keeps the weights of a model as one array of X floats, some of them padding, which is zero and stays so;
`offsets` says where in it each weight of the common state lies. Padding aside, state and results are those of the
torch engine within rounding, in float32 only.

Shapes: R rows (models, and whatever a kernel wants after them), M models, X floats of a model, S steps, or
arrays of the state.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import POINTER, Structure, c_bool, c_int32, c_int64, c_uint8, c_void_p
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from resharpen.engines.base import Batches, Ensemble, Measures, Problem, initial_state
from resharpen.engines.native import build
from resharpen.models import Model
from resharpen.optim.adamw import adamw
from resharpen.optim.schedule import step_table
from resharpen.parts import ATTENTIONS, NORMS, POSITIONS, SITES, Parts
from resharpen.state import Arrays
from resharpen.tasks import Batch

LANES = 16
STATE = ("theta", "m", "v", "ema")
HYPERPARAMETERS = (
    "rms_epsilon",
    "one_minus_beta1",
    "one_minus_beta2",
    "weight_decay",
    "adam_epsilon",
    "max_gradient_norm",
)
"""In the order of the struct in kernels/adamw.h."""
KERNEL_SITES = (
    "embedding_out",
    "block_in",
    "block_out",
    "residual",
    "unembedding_in",
    "heads_out",
    "queries_keys",
)
KNOWN = {
    "attention": ("softmax", "log-n", "ssmax", "adaptive-temperature"),
    "norm": ("rms", "layer"),
    "positions": ("rope", "nope", "alibi"),
}
"""Parts in the order of their enumerations in kernels/training.h; no kernel knows all."""

Floats = NDArray[np.float32]
Offsets = dict[str, NDArray[np.int64]]


class VariantStruct(Structure):
    """What a problem's parts are, as in kernels/training.h."""

    _fields_ = (*((site, c_bool) for site in KERNEL_SITES), *((kind, c_uint8) for kind in KNOWN))


def variant_of(parts: Parts) -> VariantStruct:
    norms = {site: getattr(parts.placement, site) for site in SITES}
    return VariantStruct(**norms, **{kind: names.index(getattr(parts, kind).name) for kind, names in KNOWN.items()})


class TrainingStruct(Structure):
    """What every `train` takes first, field by field as in kernels/training.h."""

    _fields_ = (
        ("state", c_void_p),
        ("diverged_at", c_void_p),
        ("loss", c_void_p),
        ("hyperparameters", c_void_p),
        ("table", c_void_p),
        ("first_step", c_int64),
        ("n_steps", c_int32),
        ("n_models", c_int32),
        ("variant", VariantStruct),
    )


class NativeEngine:
    """A kernel, and the rows of models that it advances."""

    name = "native"
    STEPS_AT_ONCE: ClassVar[int]
    """Steps in one call of the kernel."""

    step: int

    def __init__(self, problem: Problem, ensemble: Ensemble):
        if reason := self.supports(problem, training=False):
            raise ValueError(reason)
        self.problem, self.ensemble = problem, ensemble
        self._kernel = self.kernel(problem.model, problem.march)
        self._key = np.array(problem.batch_key, np.uint32)
        parameters = problem.model.parameters(problem.parts)
        self._variant = variant_of(problem.parts)
        shapes = {name: tuple(map(int, parameter.shape)) for name, parameter in parameters.items()}
        self._offsets, self._n_floats = self._layout(shapes)
        self._state_RxSxX = self._rows(len(STATE), self._n_floats)
        self._hyper_RxH = self._rows(len(HYPERPARAMETERS))
        self._hyper_RxH[:] = self._padded(np.stack([ensemble.hyperparameters[name] for name in HYPERPARAMETERS], 1))
        self.load(initial_state(problem, ensemble))

    @staticmethod
    def supports(problem: Problem, training: bool = True) -> str:
        """Why this engine cannot train a problem, or not even read trained weights; empty if it can."""
        raise NotImplementedError

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
        if reason := self.supports(self.problem):
            raise ValueError(reason)
        if batches is None:
            for start in range(0, n, self.STEPS_AT_ONCE):
                self._train_own(min(self.STEPS_AT_ONCE, n - start))
        else:
            for batch in batches[:n]:
                self._train_given(batch)

    def measure(self, weights: Arrays, validation: Any, report: bool = False) -> Measures:
        raise NotImplementedError

    # ---- what a kernel decides ----

    @staticmethod
    def kernel(model: Model, march: str) -> ctypes.CDLL:
        raise NotImplementedError

    def _layout(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Offsets, int]:
        """The offset of every weight among the floats of a model, and how many floats there are."""
        raise NotImplementedError

    def _train_own(self, n: int) -> None:
        raise NotImplementedError

    def _train_given(self, batch: Batch) -> None:
        raise NotImplementedError

    def _rows(self, *shape: int) -> Floats:
        """Zeros [R, ...] where the kernel wants them; here a row is a model."""
        return aligned((self._n_models, *shape))

    # ---- what they share ----

    def _train(self, n: int, *arguments: Any) -> None:
        """Call the kernel; its first argument is the same for all."""
        table = step_table(adamw, self.ensemble.hyperparameters, self.problem.steps, self.step, n)
        columns = [table[name] for name in ("lr", "correction1", "correction2", "ema_weight")]
        table_RxSx4 = self._rows(n, len(columns))
        for i, column_SxM in enumerate(columns):
            table_RxSx4[..., i] = self._padded(column_SxM.T)
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
        """Rows without a model repeat the first."""
        missing = len(self._rows()) - len(x_M)
        return np.concatenate([x_M, np.repeat(x_M[:1], missing, axis=0)]) if missing else x_M


def one_after_another(shapes: Mapping[str, tuple[int, ...]], multiple: int) -> tuple[Offsets, int]:
    """Tensors in their order, each padded to a multiple of so many floats: their offsets, and the floats in all."""
    found, start = {}, 0
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        found[name] = start + np.arange(size).reshape(shape)
        start += padded(size, multiple)
    return found, start


def unknown_part(
    problem: Problem,
    attentions: Sequence[str],
    positions: Sequence[str] = ("nope",),
    norms: Sequence[str] = ("rms",),
    sites: Sequence[str] = KERNEL_SITES[:5],
) -> str:
    """The first part of a problem that a kernel does not know, with those that it does; empty if it knows all."""
    parts = problem.parts
    for what, part, there, names in (
        ("norm", parts.norm, NORMS, norms),
        ("attention", parts.attention, ATTENTIONS, attentions),
        ("positions", parts.positions, POSITIONS, positions),
        ("optimizer", problem.optimizer, {"adamw": adamw}, ("adamw",)),
    ):
        # a part of the user's may have the name of a built-in one
        if not any(part is there.get(name) for name in names):
            return f"it does not know the {what} '{part.name}', only {one_of(names)}"
    for site in SITES:
        if getattr(parts.placement, site) and site not in sites:
            return f"it does not know a norm at {site}, only at {one_of(sites)}"
    return ""


def one_of(names: Sequence[str]) -> str:
    """>>> one_of(["softmax", "log-n", "ssmax"])
    'softmax, log-n and ssmax'
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def padded(n: int, multiple: int = LANES) -> int:
    return -(-n // multiple) * multiple


def load_kernel(name: str, sizes: Mapping[str, int], march: str, **arguments: Sequence[Any]) -> ctypes.CDLL:
    """The kernel for these sizes, built if need be, and the C types of what its functions take."""
    library = ctypes.CDLL(str(build.kernel(name, sizes, march)))
    for function, types in arguments.items():
        getattr(library, function).argtypes = [POINTER(TrainingStruct), *types] if function == "train" else types
        getattr(library, function).restype = None
    return library


def aligned(shape: tuple[int, ...]) -> Floats:
    """Floats that start on a cache line, as the vectors of the kernels must."""
    size = int(np.prod(shape))
    buffer = np.zeros(size + LANES, np.float32)
    start = -buffer.ctypes.data % 64 // 4
    return buffer[start : start + size].reshape(shape)


def pointer(array: NDArray) -> int:
    if not array.flags.c_contiguous:
        raise ValueError("kernels read contiguous arrays")
    return array.ctypes.data
