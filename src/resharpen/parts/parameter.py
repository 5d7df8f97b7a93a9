"""A learned parameter, declared: its shape and how it starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

Start = float | Callable[..., Any] | None
"""A constant; a function of the sizes that gives an array of that shape, or what broadcasts to it, the same for all
models; None draws from the truncated normal of every matrix."""


@dataclass(frozen=True)
class Parameter:
    """The shape without the model axis; a part may name a size of the model in it, such as "d" or "heads"."""

    shape: tuple[int | str, ...]
    start: Start = None
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


def learned(*shape: int | str, start: Start = None) -> Parameter:
    """What a part learns: matrices are drawn and decay, what starts at given values does not.

    >>> slopes = learned("heads", start=lambda heads: [2.0 ** -(8 * h / heads) for h in range(1, heads + 1)])
    >>> slopes.start(2)
    [0.0625, 0.00390625]
    """
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
