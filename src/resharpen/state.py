"""Names shared by states, files of weights and tables.

The state of an ensemble is a flat dict of arrays, model axis first: `theta.E`, `ema.W_Q`. Stored weights are named
`WEIGHTS.SELECTION.NAME`: which weights, at which checkpoint.
"""

from typing import Literal, get_args

from numpy.typing import NDArray

Arrays = dict[str, NDArray]
Weights = Literal["train", "bema"]
"""The training weights, or their bias-corrected moving average (BEMA)."""
Selection = Literal["best", "best-trained", "last"]
"""Which checkpoint is kept: the best over all lengths, the best over trained lengths, the last."""
WEIGHTS: tuple[Weights, ...] = get_args(Weights)
SELECTIONS: tuple[Selection, ...] = get_args(Selection)


def arrays_of(state: Arrays, name: str) -> Arrays:
    """The arrays with a prefix such as `theta`, under their names without it.

    >>> arrays_of({"theta.E": 1, "theta_0.E": 2, "ema.E": 3}, "theta")
    {'E': 1}
    """
    return {key.removeprefix(f"{name}."): array for key, array in state.items() if key.startswith(f"{name}.")}
