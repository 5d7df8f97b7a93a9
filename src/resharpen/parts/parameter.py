"""A learned parameter, declared: its shape and how it starts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from resharpen.errors import UserError
from resharpen.plain import shown, typed


@dataclass(frozen=True)
class Parameter:
    """The shape without the model axis; a part may name a size of the model in it, such as "d" or "heads"."""

    shape: tuple[int | str, ...]
    start: float | None = None
    """A constant; None draws from the truncated normal of every matrix."""
    decays: bool = True
    """Whether weight decay acts on it."""
    inner: bool = False
    """Whether it is a matrix from hidden features to hidden features, for optimizers that treat these apart."""

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


def learned(*shape: int | str, start: float | None = None) -> Parameter:
    """What a part learns: matrices are drawn and decay, what starts at a constant does not."""
    for size in shape:
        if isinstance(size, bool) or not (isinstance(size, str) or (isinstance(size, int) and size >= 1)):
            raise UserError(f"rs.learned: size {shown(size)}: must be a whole number from 1 on, or the name of a size")
    if start is not None and not math.isfinite(typed("start of rs.learned", start, float)):
        raise UserError(f"rs.learned: start = {start}: must be finite")
    return Parameter(shape, start, decays=start is None, inner=start is None and len(shape) == 2)


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
