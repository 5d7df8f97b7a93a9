"""The figures of `resharpen inspect`: attention maps of a transformer, circuits of a minimal one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from rich.console import Console

from resharpen.analysis.inspection import attention_of, choose_model, entropy_by_length, inspect, read_prefix
from resharpen.experiments.keeping.store import Run
from resharpen.experiments.keeping.stored import load_model
from resharpen.models import Transformer
from resharpen.state import Weights
from resharpen.views import circuits
from resharpen.views.style import our_style
from resharpen.views.tables import print_inspection

COMPARED = ("pre", "peri", "out")
"""The variants whose dispersion is shown side by side; all variants if a run has none of these."""
STYLES = ("-", "--", "-.", ":")
NAMED_UP_TO = 24
"""The longest prefix whose axes are labeled with tokens instead of positions."""


def draw_inspection(run: Run, model: str, weights: Weights, prefix: str | None, console: Console) -> dict[str, Figure]:
    """Attention maps of a transformer on a prefix; circuits of a minimal one and of all models of its setting."""
    model_id, setting = choose_model(run, model, weights)
    chosen = load_model(run, model_id, weights)
    name = f"{model_id} ({weights})"
    if isinstance(chosen.model, Transformer) or prefix is not None:
        tokens = read_prefix(setting, prefix)
        names = [setting.task.token_names[token] for token in tokens]
        return {"attention": draw_attention(attention_of(chosen, tokens), names, name)}
    inspection = inspect(run, setting, weights)
    table, row = inspection.find(model_id)
    decay = {variant: rows["weight_decay"].to_numpy() for variant, rows in inspection.models.items()}
    compared = {variant: inspection.tables[variant] for variant in COMPARED if variant in inspection.tables}
    print_inspection(inspection, console)
    return {
        "inspect-model": circuits.draw_model(table, row, name),
        "inspect-run": circuits.draw_run(inspection.tables, decay),
        "dispersion": circuits.draw_dispersion(compared or inspection.tables, setting.train_length),
    }


@our_style()
def draw_attention(weights_AxHxLxL: NDArray[np.float64], tokens: Sequence[str], name: str) -> Figure:
    """One row per layer: a map per head, and the entropy of each head by length next to that of constant attention."""
    layers, heads, length, _ = weights_AxHxLxL.shape
    entropy_AxHxL = entropy_by_length(weights_AxHxLxL)
    figure = Figure(figsize=(2.6 * (heads + 1) + 0.8, 2.7 * layers + 0.5), layout="constrained", dpi=150)
    grid = figure.subplots(layers, heads + 1, squeeze=False)
    for layer in range(layers):
        for head in range(heads):
            axes = grid[layer, head]
            # the square root shows weights of a few per cent, typical of dispersed attention
            axes.imshow(np.sqrt(weights_AxHxLxL[layer, head]), cmap="cividis", vmin=0, vmax=1)
            axes.set_title(f"layer {layer}, head {head}", fontsize=8)
            if length <= NAMED_UP_TO:
                axes.set_xticks(range(length), tokens, rotation=90, fontsize=7)
                axes.set_yticks(range(length), tokens, fontsize=7)
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
        axes.legend(fontsize=7)
    figure.colorbar(grid[0, 0].images[0], ax=grid[:, :heads], label="square root of the weight", shrink=0.7)
    figure.suptitle(f"{name}: what each position (row) attends to", fontsize=9.5)
    return figure
