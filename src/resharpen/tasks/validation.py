"""A fixed set of prefixes to score models on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class ValidationSet:
    """N sequences of L input tokens; a prefix that ends where `scored` is true is one of the P that count.

    Per-prefix results are in row-major order of `scored`. Tokens after the last scored position are padding.
    """

    inputs_NxL: NDArray[np.int64]
    scored_NxL: NDArray[np.bool_]
    length_NxL: NDArray[np.int64] | None = None
    """The length that a place is reported at, where that is not the number of its input tokens."""
    sampled: bool = True
    """False where it is every state that there is: then its values have no sampling error."""

    @cached_property
    def length_P(self) -> NDArray[np.int64]:
        """The length of each scored prefix."""
        if self.length_NxL is not None:
            return self.length_NxL[self.scored_NxL]
        return np.nonzero(self.scored_NxL)[1] + 1

    def pieces(self, positions: int) -> Iterator[ValidationSet]:
        """The same prefixes in order, in sets of about so many positions: for bounded memory."""
        rows = max(1, positions // self.inputs_NxL.shape[1])
        for start in range(0, len(self.inputs_NxL), rows):
            yield self.take(slice(start, start + rows))

    @property
    def sequences(self) -> int:
        return len(self.inputs_NxL)

    def blocks_P(self, blocks: int) -> NDArray[np.int64]:
        """Sequences go to blocks in turn; the block of each scored prefix."""
        return np.nonzero(self.scored_NxL)[0] % blocks

    def without(self, block: int, blocks: int) -> ValidationSet:
        return self.take(np.arange(len(self.inputs_NxL)) % blocks != block)

    def take(self, rows: Any) -> ValidationSet:
        """Some of the sequences."""
        length = None if self.length_NxL is None else self.length_NxL[rows]
        return ValidationSet(self.inputs_NxL[rows], self.scored_NxL[rows], length, self.sampled)
