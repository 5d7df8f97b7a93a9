"""A metric by input length: one panel a placement, in it a split violin for each length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resharpen.experiments.spec import Setting
from resharpen.experiments.store import Run
from resharpen.views.violins import COLOURS, finish_panel, legend, split_violin

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = {
    "accuracy": "accuracy",
    "entropy": "attention entropy (nats)",
    "largest_weight": "largest attention weight",
    "tvd": "TVD",
    "auc": "ROC AUC of the marked token's logit",
}
HIGHER_IS_BETTER = ("accuracy", "largest_weight", "auc")
ITEMS = ("accuracy", "entropy", "largest_weight")


def draw_by_length(
    run: Run, setting: Setting, metric: str, title: str, selection: str = "best", lengths: pl.DataFrame | None = None
) -> Figure:
    """Every model of every placement at every length of the report set; trained lengths are shaded."""
    import polars as pl
    from matplotlib.figure import Figure

    rows = (
        (run.table("lengths") if lengths is None else lengths)
        .filter(pl.col("selection") == selection, pl.col("metric") == metric)
        .join(run.table("models").filter(setting=setting.name), on="model")
    )
    placements = [name for name in run.experiment.placements if name in set(rows["placement"])]
    figure = Figure(figsize=(0.9 + 3.3 * len(placements), 3.9), layout="constrained", dpi=150)
    grid = figure.subplots(1, len(placements), sharey=True, squeeze=False)[0]
    shown = sorted(rows["length"].unique())
    trained = sum(length <= setting.train_length for length in shown)
    best = 0.9 if metric in HIGHER_IS_BETTER else 0.1
    chance = 1 / setting.task.vocabulary if metric == "accuracy" else 0.5 if metric == "auc" else None
    for axes, placement in zip(grid, placements, strict=True):
        _panel(axes, rows.filter(placement=placement), shown, placement, best)
        axes.axvspan(-0.6, trained - 0.5, color="#DDDDDD", alpha=0.5, linewidth=0, zorder=0)
        if chance is not None:
            axes.axhline(chance, color="grey", linewidth=0.8, linestyle=":", zorder=0)
            axes.text(len(shown) - 0.5, chance, "chance", ha="right", va="bottom", fontsize=6.5, color="grey")
        axes.set_xlabel(f"input length ({'items' if metric in ITEMS else 'tokens, to the end of a bin'})")
    grid[0].set_ylabel(NAMES.get(metric, metric))
    legend(figure, best)
    figure.suptitle(f"{title} (grey: trained lengths; {run.experiment.steps:,} steps)", fontsize=9.5)
    return figure


def _panel(axes: Axes, rows: pl.DataFrame, lengths: list[int], placement: str, best: float) -> None:
    for position, length in enumerate(lengths):
        for weights in COLOURS:
            values = rows.filter(length=length, weights=weights)["value"].drop_nulls()
            split_violin(axes, position, values.to_numpy(), weights, best)
    axes.set(xlim=(-0.6, len(lengths) - 0.4))
    axes.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths], rotation=45, fontsize=8)
    finish_panel(axes, placement, rows.filter(weights="train", length=lengths[0]), "value")
