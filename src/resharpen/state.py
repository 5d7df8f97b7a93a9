"""Names that states, weights files and tables have in common.

The state of an ensemble is a flat dict of arrays, model axis first: `theta.E`, `ema.W_Q`. Weights that are kept are
`WEIGHTS.SELECTION.NAME`: which weights, at which checkpoint.
"""

from __future__ import annotations

from typing import Literal, get_args

from numpy.typing import NDArray

Arrays = dict[str, NDArray]
Weights = Literal["train", "bema"]
"""The training weights, or their moving average without its bias."""
Selection = Literal["best", "best-trained", "last"]
"""Which checkpoint is kept: the best over all lengths, the best judged on trained lengths only, the last."""
WEIGHTS: tuple[Weights, ...] = get_args(Weights)
SELECTIONS: tuple[Selection, ...] = get_args(Selection)


def arrays_of(state: Arrays, name: str) -> Arrays:
    """The arrays with that prefix, `theta` for example, without it.

    >>> arrays_of({"theta.E": 1, "theta_0.E": 2, "ema.E": 3}, "theta")
    {'E': 1}
    """
    return {key.removeprefix(f"{name}."): array for key, array in state.items() if key.startswith(f"{name}.")}
