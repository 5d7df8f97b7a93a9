"""Attention maps of one transformer on one prefix, and their entropy by length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from resharpen.analysis.inspection import entropy_by_length

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLES = ("-", "--", "-.", ":")
NAMED_UP_TO = 24
"""Longer prefixes have positions on their axes, not tokens."""


def draw_attention(weights_AxHxLxL: NDArray[np.float64], tokens: Sequence[str], name: str) -> Figure:
    """One row per layer: a map for each head, and their entropy by length beside that of constant attention."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    layers, heads, length, _ = weights_AxHxLxL.shape
    entropy_AxHxL = entropy_by_length(weights_AxHxLxL)
    figure = Figure(figsize=(2.6 * (heads + 1) + 0.8, 2.7 * layers + 0.5), layout="constrained", dpi=150)
    grid = figure.subplots(layers, heads + 1, squeeze=False)
    for layer in range(layers):
        for head in range(heads):
            axes = grid[layer, head]
            # the square root shows weights of a few per cent, which is what dispersed attention consists of
            axes.imshow(np.sqrt(weights_AxHxLxL[layer, head]), cmap="cividis", vmin=0, vmax=1)
            axes.set_title(f"layer {layer}, head {head}", fontsize=8)
            if length <= NAMED_UP_TO:
                axes.set_xticks(range(length), tokens, rotation=90, fontsize=6)
                axes.set_yticks(range(length), tokens, fontsize=6)
        axes = grid[layer, heads]
        lengths = np.arange(1, length + 1)
        axes.plot(lengths, np.log(lengths), color="black", linewidth=0.9, label="constant: log of the length")
        for head in range(heads):
            style = STYLES[head % len(STYLES)]
            axes.plot(lengths, entropy_AxHxL[layer, head], style, linewidth=1.2, label=f"head {head}")
        axes.set_title(f"layer {layer}, entropy", fontsize=8)
        axes.set_ylabel("nats", fontsize=8)
        axes.set_xlabel("length (tokens)", fontsize=8)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(fontsize=5.5)
    figure.colorbar(grid[0, 0].images[0], ax=grid[:, :heads], label="square root of the weight", shrink=0.7)
    figure.suptitle(f"{name}: what each position (row) attends to", fontsize=9.5)
    return figure
