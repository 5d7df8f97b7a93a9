"""Declaration of a learned parameter: its shape and initialization."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from resharpen.errors import UserError
from resharpen.plain import shown, typed

STD = 0.02
"""Standard deviation of the truncated normal initialization of matrices."""
Start = float | Callable[..., Any] | None
"""A constant; a function of the sizes that returns an array which broadcasts to the shape, the same for all models;
None for random initialization."""


@dataclass(frozen=True)
class Parameter:
    """The shape without the model axis; in a part it may contain names of sizes, such as "d" or "heads"."""

    shape: tuple[int | str, ...]
    start: Start = None
    decays: bool = True
    """Whether weight decay acts on it."""
    inner: bool = False
    """Whether it is a matrix from hidden features to hidden features, for optimizers such as Muon."""
    std: float = STD
    """Standard deviation of the normal initialization, truncated at two standard deviations."""
    uniform: float | None = None
    """Initialize uniformly between minus this and this instead."""
    by_module: bool = False
    """Initialized by the user's module when it is constructed."""
    out_first: bool = False
    """Whether a matrix is [out, in], as in torch.nn; optimizers get inner matrices as [in, out]."""

    @property
    def drawn(self) -> str:
        """Description of its initialization."""
        if self.by_module:
            return "by the module"
        if self.start is not None:
            return "by a function of the sizes" if callable(self.start) else f"constant {self.start:g}"
        if self.uniform is not None:
            return f"uniform, at most {self.uniform:g}"
        return f"normal, std {self.std:g}"

    def sized(self, sizes: Mapping[str, int]) -> Parameter:
        """The same with numbers instead of names of sizes.

        >>> learned("heads", start=1.0).sized({"heads": 4}).shape
        (4,)
        """
        missing = [name for name in self.shape if isinstance(name, str) and name not in sizes]
        if missing:
            raise ValueError(f"a learned parameter has the size '{missing[0]}', which the model does not have")
        shape = tuple(sizes[size] if isinstance(size, str) else size for size in self.shape)
        return replace(self, shape=shape)


def learned(
    *shape: int | str,
    start: Start = None,
    role: Literal["inner", "embedding", "output"] = "inner",
    std: float = STD,
    uniform: float | None = None,
    decays: bool | None = None,
    inner: bool | None = None,
) -> Parameter:
    """A learned parameter.

    Args:
        start: a constant, or a function of the sizes that returns an array. Without it the initialization is random: a
            normal of standard deviation `std`, truncated at two standard deviations, or uniform on +-`uniform`.
        role: role of a matrix, which determines the defaults of `decays` and `inner`, as in the built-in models: a
            matrix decays unless it is an embedding, and is inner unless it is an embedding or the output. A parameter
            with a `start` does not decay and is not inner.
        decays: whether weight decay acts on it.
        inner: whether it is a matrix between hidden features, for optimizers such as Muon.

    >>> slopes = learned("heads", start=lambda heads: [2.0 ** -(8 * h / heads) for h in range(1, heads + 1)])
    >>> slopes.start(2)
    [0.0625, 0.00390625]
    """
    for size in shape:
        if isinstance(size, bool) or not (isinstance(size, str) or (isinstance(size, int) and size >= 1)):
            raise UserError(f"rs.learned: size {shown(size)}: must be a whole number from 1 on, or the name of a size")
    is_number = start is not None and not callable(start)
    if is_number and not math.isfinite(typed("start of rs.learned", start, float)):
        raise UserError(f"rs.learned: start = {start}: must be finite")
    drawn = start is None
    by_role = drawn and role != "embedding", drawn and len(shape) == 2 and role == "inner"
    decays, inner = (usual if given is None else given for usual, given in zip(by_role, (decays, inner), strict=True))
    return Parameter(shape, start, decays, inner, std, uniform)


def matrix(*shape: int) -> Parameter:
    return learned(*shape)


def outer(*shape: int) -> Parameter:
    """A matrix at the input or output of the network: not all of its features are hidden."""
    return Parameter(shape)


def bias(size: int) -> Parameter:
    return learned(size, start=0.0)


def embedding(tokens: int, width: int) -> Parameter:
    """Initialized like a matrix, without weight decay."""
    return Parameter((tokens, width), decays=False)
