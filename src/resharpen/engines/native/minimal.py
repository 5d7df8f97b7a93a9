"""Native engine of the minimal transformer on Set Complement: a SIMD lane is a model.

The state is one array [4, W, 16] (theta, m, v, ema), the sixteen models of a group innermost. Lanes without a draw
repeat the first draw and are dropped from results.

Shapes: R = 16 lanes, W weights, N sequences, L positions, P scored prefixes.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_uint32, c_void_p
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from resharpen.engines.base import Measures, Problem
from resharpen.engines.native.base import (
    LANES,
    Floats,
    NativeEngine,
    aligned,
    load_kernel,
    pointer,
    unknown_part,
)
from resharpen.models import Minimal, Model
from resharpen.state import Arrays
from resharpen.tasks import Batch, SetComplement, Task, ValidationSet

MEASURES = ("tvd",)
WIDEST = 512
"""The compiler unrolls over columns: much wider kernels cannot be built."""


@cache
def kernel(model: Model, march: str = "native") -> ctypes.CDLL:
    assert isinstance(model, Minimal)
    return load_kernel(
        "minimal",
        {"V": model.vocabulary, "D": model.d, "K": model.d_k, "DV": model.d_v},
        march,
        MEASURES,
        lanes=LANES,
        train=[c_void_p, c_void_p, c_int32, c_int32, c_void_p, c_uint32],
        evaluate=[c_void_p, c_void_p, c_void_p, c_int32, c_void_p, c_void_p, c_void_p, c_void_p],
    )


class NativeMinimal(NativeEngine):
    kernel = staticmethod(kernel)
    MEASURES, SCORES = MEASURES, (Task.score,)
    STEPS_AT_ONCE = 2048  # the step table is half a megabyte

    @staticmethod
    def why_not(problem: Problem, training: bool) -> str:
        if not isinstance(problem.task, SetComplement):
            return f"it supports the minimal transformer on Set Complement, not on {problem.task.name}"
        drawn = ("batch", "sample", "trained_places")
        if training and any(getattr(type(problem.task), x) is not getattr(SetComplement, x) for x in drawn):
            return f"it samples minibatches of Set Complement, but {problem.task.name} samples differently"
        if problem.task.v > 32:
            return f"v = {problem.task.v}: it supports up to 32 tokens"
        assert isinstance(problem.model, Minimal)
        if (widest := max(problem.model.d, problem.model.d_k, problem.model.d_v)) > WIDEST:
            return f"a width of {widest:,}: it supports up to {WIDEST}"
        if problem.batch >= 2**16:
            return f"batch = {problem.batch}: it supports up to 65,535 sequences"
        return unknown_part(problem, ("softmax", "log-n", "ssmax"))

    def _measure(self, weights: Arrays, validation: ValidationSet, report: bool) -> Measures:
        last_P, set_P, where_P = states(validation, self.problem.parts.attention.name != "softmax")
        theta_RxW, tvd_RxP = self._packed(weights), self._rows(len(last_P))
        self._kernel.evaluate(
            theta_RxW.ctypes.data,
            self._hyper_RxH.ctypes.data,
            ctypes.byref(self._variant),
            len(last_P),
            *map(pointer, (last_P, set_P, where_P)),
            tvd_RxP.ctypes.data,
        )
        return {"tvd": np.ascontiguousarray(tvd_RxP[: self._n_models])}

    def _rows(self, *shape: int) -> Floats:
        return np.moveaxis(aligned((*shape, LANES)), -1, 0)

    def _train_own(self, n: int) -> None:
        self._train(n, None, None, self.problem.batch, self.problem.train_length, *self._stream)

    def _train_given(self, batch: Batch) -> None:
        inputs_NxL, targets_NxL = (np.ascontiguousarray(x, np.int32) for x in (batch.inputs, batch.targets))
        if not batch.mask.all():
            raise ValueError("the native engine takes sequences of one length")
        if (np.diff(np.sort(inputs_NxL, axis=1), axis=1) == 0).any():
            raise ValueError("the native engine takes sequences of distinct tokens")
        n, length = inputs_NxL.shape
        self._train(1, pointer(inputs_NxL), pointer(targets_NxL), n, length, *self._stream)


@lru_cache(maxsize=8)
def states(validation: ValidationSet, by_size: bool) -> tuple[NDArray[np.int32], NDArray[np.uint32], NDArray[np.int32]]:
    """Last token and set (as a bit mask) of every scored prefix, sorted by last token, with `by_size` by size, and by
    set; and the place of each, [P]."""
    inputs, scored = validation.inputs_NxL, validation.scored_NxL
    set_NxL = np.bitwise_or.accumulate(np.uint32(1) << inputs.astype(np.uint32), axis=1)
    last_P, set_P = inputs[scored], set_NxL[scored]
    if (np.bitwise_count(set_P) != validation.length_P).any():
        raise ValueError("the native engine takes sequences of distinct tokens")
    where_P = np.lexsort((set_P, validation.length_P * by_size, last_P))
    return last_P[where_P].astype(np.int32), set_P[where_P], where_P.astype(np.int32)
