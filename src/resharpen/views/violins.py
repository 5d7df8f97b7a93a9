"""Split violins: the left half shows training weights, the right half BEMA, and every model is a dot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette: told apart by the colour-blind, and by lightness in grey print.
COLOURS = {"train": "#0072B2", "bema": "#E69F00"}
DARK = {"train": "#00395B", "bema": "#7A5000"}
LABELS = {"train": "training weights (left)", "bema": "BEMA (right)"}
_WIDTH = 0.86


def split_violin(axes: Axes, x: float, values: NDArray[np.float64], weights: str) -> None:
    """One half of a violin at x: density, a dot for each model, the median and the 10% quantile."""
    if not len(values):
        return
    colour, direction = COLOURS[weights], -1 if weights == "train" else 1
    side = "low" if weights == "train" else "high"
    (body,) = axes.violinplot(values, [x], widths=_WIDTH, showextrema=False, side=side)["bodies"]  # pyright: ignore[reportGeneralTypeIssues]
    body.set(facecolor=colour, alpha=0.45, linewidth=0)
    # Dots are spread by rank, not at random: the same run gives the same picture.
    spread = 0.06 + 0.24 * np.modf(np.arange(len(values)) * 0.618034)[0]
    axes.plot(x + direction * spread, values, ".", color=DARK[weights], markersize=2.4, alpha=0.8, markeredgewidth=0)
    for quantile, width in ((0.5, 0.40), (0.1, 0.22)):
        at = np.quantile(values, quantile)
        axes.plot([x, x + direction * width], [at, at], color="black", linewidth=0.9, solid_capstyle="butt")
