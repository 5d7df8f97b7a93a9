"""A learned parameter, declared: its shape and how it starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from resharpen.errors import UserError
from resharpen.plain import shown, typed

STD = 0.02
"""Of the truncated normal that matrices start from."""
Start = float | Callable[..., Any] | None
"""A constant; a function of the sizes that gives an array of that shape, or what broadcasts to it, the same for all
models; None draws every number."""


@dataclass(frozen=True)
class Parameter:
    """The shape without the model axis; a part may name a size of the model in it, such as "d" or "heads"."""

    shape: tuple[int | str, ...]
    start: Start = None
    decays: bool = True
    """Whether weight decay acts on it."""
    inner: bool = False
    """Whether it is a matrix from hidden features to hidden features, for optimizers that treat these apart."""
    std: float = STD
    """Standard deviation of the normal that it is drawn from, truncated at two of them."""
    uniform: float | None = None
    """Draw uniformly between minus this and this instead."""
    by_module: bool = False
    """Drawn by the user's own module when it is made."""
    out_first: bool = False
    """Whether a matrix is [out, in], as in torch.nn; optimizers get inner matrices as [in, out]."""

    @property
    def drawn(self) -> str:
        """How it starts, in words."""
        if self.by_module:
            return "by the module"
        if self.start is not None:
            return "by a function of the sizes" if callable(self.start) else f"constant {self.start:g}"
        if self.uniform is not None:
            return f"uniform, at most {self.uniform:g}"
        return f"normal, std {self.std:g}"

    def sized(self, sizes: Mapping[str, int]) -> Parameter:
        """The same with numbers for the names of sizes.

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
        start: a constant, or a function of the sizes that gives an array. Without one it is drawn, from a normal of
            standard deviation `std` that is truncated at two of them, or uniformly between -`uniform` and `uniform`.
        role: what a matrix is; says what `decays` and `inner` are where they are not given, as in the built-in models.
            A matrix decays unless it is an embedding, and is inner unless it is an embedding or the output; what
            starts at given values does not decay and is not inner.
        decays: whether weight decay acts on it.
        inner: whether optimizers such as Muon treat it as a matrix between hidden features.

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
    """A matrix at an end of the network: one of what it reads and what it makes is not hidden."""
    return Parameter(shape)


def bias(size: int) -> Parameter:
    return learned(size, start=0.0)


def embedding(tokens: int, width: int) -> Parameter:
    """Drawn like a matrix, spared by weight decay."""
    return Parameter((tokens, width), decays=False)
