"""A fixed set of prefixes to score models on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class ValidationSet:
    """N sequences of L input tokens; a prefix that ends where `scored` is true is one of the P that count.

    Per-prefix results are in row-major order of `scored`. Tokens after the last scored position are padding.
    """

    inputs_NxL: NDArray[np.int64]
    scored_NxL: NDArray[np.bool_]

    @cached_property
    def length_P(self) -> NDArray[np.int64]:
        """The number of input tokens of each scored prefix."""
        return np.nonzero(self.scored_NxL)[1] + 1

    def pieces(self, positions: int) -> Iterator[ValidationSet]:
        """The same prefixes in order, in sets of about so many positions: for bounded memory."""
        rows = max(1, positions // self.inputs_NxL.shape[1])
        for start in range(0, len(self.inputs_NxL), rows):
            yield ValidationSet(self.inputs_NxL[start : start + rows], self.scored_NxL[start : start + rows])
