"""A fixed set of prefixes to score models on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class ValidationSet:
    """N sequences of L input tokens; a prefix that ends where `scored` is true is one of the P that count.

    Per-prefix results are in row-major order of `scored`. Tokens after the last scored position are padding.
    """

    inputs_NxL: NDArray[np.int64]
    scored_NxL: NDArray[np.bool_]

    @property
    def length_P(self) -> NDArray[np.int64]:
        """The number of input tokens of each scored prefix."""
        return np.nonzero(self.scored_NxL)[1] + 1
