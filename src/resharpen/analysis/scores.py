"""One number a model: how well it does at the kept checkpoint, over all lengths and over those it never saw."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resharpen.experiments.store import Run

if TYPE_CHECKING:
    import polars as pl


def scores(run: Run, selection: str = "best") -> pl.DataFrame:
    """Per model and kind of weights: `tvd` over all lengths, `tvd_new` over those longer than trained.

    Null where there are none, and for a model that diverged before its first checkpoint.
    """
    import polars as pl

    models = run.table("models").select("model", "setting", "v", "train_length", "placement", "draw", "diverged_at")
    lengths = run.table("lengths").filter(pl.col("selection") == selection, pl.col("metric") == "tvd")
    new = pl.col("length") > pl.col("train_length")
    return (
        lengths.join(models, on="model")
        .group_by("model", "weights", maintain_order=True)
        .agg(
            pl.col("value").mean().alias("tvd"),
            pl.col("value").filter(new).mean().alias("tvd_new"),
            new.any().alias("has_new"),
        )
        .join(models, on="model", maintain_order="left")
    )


def tidy_results(run: Run) -> pl.DataFrame:
    """Every measured value of a run, one a row, with everything that is known about its model."""
    return run.table("lengths").join(run.table("models"), on="model", maintain_order="left")
