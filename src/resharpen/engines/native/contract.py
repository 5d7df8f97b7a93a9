"""Checks, when a kernel is loaded, what Python and the kernel must agree on.

`describe` of a kernel returns lines of a name and its value in the kernel (kernels/contract.h):

    version 2                                   measures tvd, marked
    attention softmax, log_n, ...               enumerators in order, with an underscore for a dash
    Training 72                                 the size of a structure
    Training.state 0 8                          offset and size of a field

`parameters` returns the memory layout of a variant's weights, which the engine uses:

    floats 592                                  of a model, padding included
    decay 72 512                                the floats from 72 up to 512 have weight decay
    0.attention.W_Q 96 8 96 2 16 4 1            offset; size and stride of each axis
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import Structure, c_bool, c_char_p, c_int32, c_int64, c_uint8, c_void_p

import numpy as np
from numpy.typing import NDArray

from resharpen.errors import Failed
from resharpen.parts.parameter import Parameter

HYPERPARAMETERS = (
    "rms_epsilon",
    "one_minus_beta1",
    "one_minus_beta2",
    "weight_decay",
    "adam_epsilon",
    "max_gradient_norm",
)
STEP_COLUMNS = ("lr", "correction1", "correction2", "ema_weight")
"""Columns of the step table (`optim/schedule.py`)."""
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
    "attention": ("softmax", "log-n", "ssmax", "adaptive-temperature", "window", "sink", "entmax", "asentmax"),
    "norm": ("rms", "layer"),
    "positions": (
        *("rope", "nope", "alibi", "nape", "t5", "kerple", "rope-half", "rope-500k", "sinusoidal"),
        *("learned", "learned-offset"),
    ),
}
"""Parts in the order of their enumerators; no kernel supports all of them."""

Offsets = dict[str, NDArray[np.int64]]


class PlacementStruct(Structure):
    _fields_ = tuple((site, c_bool) for site in KERNEL_SITES)


class VariantStruct(Structure):
    """The parts of a variant."""

    _fields_ = (
        ("placement", PlacementStruct),
        *((kind, c_uint8) for kind in KNOWN),
        ("window", c_int32),
        ("learned", c_int32),
    )


class TrainingStruct(Structure):
    """The first argument of every `train`."""

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


class Mismatch(Failed):
    """Python and a kernel do not agree."""


def check(
    name: str,
    library: ctypes.CDLL,
    version: int,
    measures: Sequence[str],
    structs: Mapping[str, type[Structure] | np.dtype],
    lanes: int,
) -> None:
    """Mismatch for the first difference between kernel and Python. `structs` are those of this kernel in addition to
    the common ones; `lanes` is the number of models per vector."""
    expected = {
        "version": str(version),
        "measures": ", ".join(measures),
        **{kind: ", ".join(names).replace("-", "_") for kind, names in KNOWN.items()},
        **_described("Placement", PlacementStruct),
        **_described("Variant", VariantStruct),
        **_described("Training", TrainingStruct),
        **_described("Hyperparameters", np.dtype([(row, np.float32, lanes) for row in HYPERPARAMETERS])),
        **_described("StepRow", np.dtype([(column, np.float32, lanes) for column in STEP_COLUMNS])),
    }
    for struct, kind in structs.items():
        expected |= _described(struct, kind)
    library.describe.argtypes, library.describe.restype = [], c_char_p
    library.parameters.argtypes, library.parameters.restype = [c_void_p], c_char_p
    told = _lines(library.describe())
    for what in {**expected, **told}:
        _agree(name, what, told.get(what, "none"), expected.get(what, "none"))


def layout(
    name: str, library: ctypes.CDLL, variant: VariantStruct, parameters: Mapping[str, Parameter]
) -> tuple[Offsets, int]:
    """The offset of every weight among the floats of a model, in the shape of its tensor, and the number of floats;
    Mismatch unless the kernel has exactly the model's parameters."""
    told = _lines(library.parameters(ctypes.byref(variant)))
    floats, (begin, end) = int(told.pop("floats")), map(int, told.pop("decay").split())
    _agree(name, "the parameters of a variant", ", ".join(sorted(told)), ", ".join(sorted(parameters)))
    found: Offsets = {}
    for parameter, declared in parameters.items():
        start, *axes = map(int, told[parameter].split())
        where = np.full((), start)
        for size, stride in zip(axes[::2], axes[1::2], strict=True):
            where = where[..., None] + np.arange(size) * stride
        shape = tuple(map(int, declared.shape))
        refines = set(np.cumprod(shape)) <= set(np.cumprod(where.shape))  # the kernel may split an axis
        if where.size != np.prod(shape) or not refines:
            _agree(name, f"the shape of {parameter}", str(list(where.shape)), str(list(shape)))
        _agree(name, f"weight decay on {parameter}", str(begin <= start < end), str(declared.decays))
        found[parameter] = where.reshape(shape)
    every = np.concatenate([where.ravel() for where in found.values()])
    apart = len(np.unique(every)) == every.size and every.min() >= 0 and every.max() < floats
    _agree(name, f"memory of {every.size} weights", "disjoint" if apart else "overlapping or outside", "disjoint")
    return found, floats


def _agree(kernel: str, what: str, told: str, expected: str) -> None:
    if told != expected:
        raise Mismatch(f"{what}: the {kernel} kernel has {told}, but Python has {expected}")


def _described(name: str, kind: type[Structure] | np.dtype) -> dict[str, str]:
    """A structure in the format of `describe`."""
    if isinstance(kind, np.dtype):
        assert kind.fields
        fields = {field: (offset, inner.itemsize) for field, (inner, offset, *_) in kind.fields.items()}
        size = kind.itemsize
    else:
        members = {field: getattr(kind, field) for field, *_ in kind._fields_}
        fields = {field: (member.offset, member.size) for field, member in members.items()}
        size = ctypes.sizeof(kind)
    return {name: str(size)} | {f"{name}.{field}": f"{at} {length}" for field, (at, length) in fields.items()}


def _lines(told: bytes) -> dict[str, str]:
    return {name: rest for name, _, rest in (line.partition(" ") for line in told.decode().splitlines())}
