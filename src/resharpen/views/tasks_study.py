"""The study of all tasks: gains over the baseline per task, and the kind of dispersion of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from resharpen.analysis.dispersion import BASE, FOCUSED, MODELS, Gain
from resharpen.analysis.verdict import MARGIN
from resharpen.views.compare_figure import look
from resharpen.views.style import our_style
from resharpen.views.violins import plain_panel

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure


@our_style()
def draw_tasks(gains: Sequence[Gain], details: str) -> Figure:
    """One row per task, one mark per variant; on trained lengths and on new ones."""
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(gain.task for gain in gains))
    variants = list(dict.fromkeys(gain.variant for gain in gains))
    figure = Figure(figsize=(8.3, 1.3 + 0.36 * len(tasks)), layout="constrained", dpi=150)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, lengths in zip(panels, ("trained", "new"), strict=True):
        axes.axvspan(-MARGIN, MARGIN, color="#eeeeee", zorder=0)
        axes.axvline(0.0, color="black", linewidth=0.8)
        for j, variant in enumerate(variants):
            of = [gain for gain in gains if (gain.variant, gain.lengths) == (variant, lengths)]
            y = np.array([tasks.index(gain.task) for gain in of]) + 0.22 * (j - (len(variants) - 1) / 2)
            x, low, high = (
                np.array([getattr(gain.interval, name) for gain in of]) for name in ("estimate", "low", "high")
            )
            known = np.isfinite(low) & np.isfinite(high)
            style = look(variant)
            axes.hlines(y[known], low[known], high[known], color=style["color"], linewidth=1.4)
            faces = [style["color"] if k else "white" for k in known]
            axes.scatter(
                x, y, marker=style["marker"], s=22, c=faces, edgecolors=style["color"], label=variant, zorder=3
            )
        plain_panel(axes, "x")
        axes.set_title(f"{lengths} lengths", fontsize=9.5, fontweight="bold")
        axes.set_xlabel(f"median gain over {BASE} (right of 0 is better)", fontsize=8.5)
        axes.tick_params(labelsize=8)
    labels = {gain.task: f"{gain.task} ({gain.metric})" for gain in gains}
    panels[0].set_yticks(range(len(tasks)), [labels[task] for task in tasks])
    panels[0].set_ylim(len(tasks) - 0.5, -0.5)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False, fontsize=8)
    figure.suptitle(
        f"Gain over {BASE} per task, paired by draw: {details}\n95% intervals; gray band: less than {MARGIN:g}",
        fontsize=10,
    )
    return figure


def print_dispersion(table: pl.DataFrame, console: Console) -> None:
    shown = Table(title="Dispersion in the best baseline models, and gains on new lengths", title_justify="left")
    for name in table.columns:
        shown.add_column(name, justify="left" if name in ("task", "kind", "as predicted") else "right")
    words = {True: Text("yes", "green"), False: Text("no", "red"), None: Text("neither helps", "dim")}
    for row in table.iter_rows(named=True):
        cells = [f"{x:.3f}" if isinstance(x, float) else x if isinstance(x, str) else "-" for x in row.values()]
        shown.add_row(*cells[:-1], words[row["as predicted"]])
    console.print(shown)
    told = table["as predicted"].drop_nulls()
    console.print(
        f"Means over the best {MODELS} models of {BASE}. Kind: focus if a head puts at least {FOCUSED:g} of its weight "
        "on one key on trained lengths, otherwise mean. Slopes are of logarithms: -1 is that of uniform attention. As "
        "predicted: focus is helped most by sharper attention, mean by a norm after attention: "
        f"{int(told.sum())} of {len(told)} tasks.",
        style="dim",
    )
