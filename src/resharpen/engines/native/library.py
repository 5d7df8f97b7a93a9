"""The C interface of the kernels, as ctypes sees it."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_int32, c_int64, c_uint8, c_uint32, c_void_p
from functools import cache

import numpy as np
from numpy.typing import NDArray

from resharpen.engines.native import build

LANES = 16


class Training(Structure):
    """Arguments of `train`, field by field as in kernels/minimal.cpp."""

    _fields_ = (
        ("theta", c_void_p),
        ("m", c_void_p),
        ("v", c_void_p),
        ("ema", c_void_p),
        ("diverged_at", c_void_p),
        ("hyperparameters", c_void_p),
        ("table", c_void_p),
        ("inputs", c_void_p),
        ("targets", c_void_p),
        ("first_step", c_int64),
        ("n_steps", c_int32),
        ("batch", c_int32),
        ("length", c_int32),
        ("key", c_uint32 * 2),
        ("group", c_uint32),
        ("placement", c_uint8 * 5),
        ("merge", c_uint8),
    )


@cache
def minimal(v: int, d: int, d_k: int, d_v: int, march: str = "native") -> ctypes.CDLL:
    """The kernel of the minimal transformer for these sizes, built if need be and loaded."""
    library = ctypes.CDLL(str(build.kernel("minimal", {"V": v, "D": d, "K": d_k, "DV": d_v}, march)))
    library.train.argtypes = [POINTER(Training)]
    library.evaluate.argtypes = [c_void_p, c_void_p, c_void_p, c_int32, c_void_p, c_void_p, c_void_p, c_void_p]
    library.sample.argtypes = [c_void_p, c_uint32, c_uint32, c_int32, c_int32, c_void_p]
    for function in (library.train, library.evaluate, library.sample):
        function.restype = None
    return library


def aligned(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Floats that start on a cache line, as the vectors of the kernels must."""
    size = int(np.prod(shape))
    buffer = np.zeros(size + LANES, np.float32)
    start = -buffer.ctypes.data % 64 // 4
    return buffer[start : start + size].reshape(shape)


def pointer(array: NDArray) -> int:
    if not array.flags.c_contiguous:
        raise ValueError("kernels read contiguous arrays")
    return array.ctypes.data
