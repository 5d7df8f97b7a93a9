"""Claim 4: Maximum Retrieval."""

from __future__ import annotations

from resharpen.analysis.claims.finding import Claim, Finding, by_group, make_claim, median, paired_only
from resharpen.analysis.statistics import bootstrap
from resharpen.experiments.store import Run

BETTER, WORSE = ("post", "peri"), ("none", "pre")
WORST = 0.0
"""The accuracy of a model that has none."""


def max_retrieval_claims(run: Run) -> list[Claim]:
    """Pair by pair: the accuracy on new lengths is higher with a norm after attention, and by more at the longest
    length than at the longest trained one."""
    import polars as pl

    models = run.table("models").select("model", "setting", "placement", "draw", "train_length")
    lengths = run.table("lengths").filter(metric="accuracy", selection="best", weights="train").drop("n")
    rows = paired_only(lengths.join(models, on="model"))
    new = rows.filter(pl.col("length") > pl.col("train_length"))
    mean = new.group_by("placement", "draw").agg(pl.col("value").fill_null(WORST).mean())
    longest, trained = new["length"].max(), rows["train_length"].max()
    ends = rows.filter(pl.col("length") == longest).join(
        rows.filter(pl.col("length") == trained), on=["placement", "draw"], suffix="_trained"
    )
    change = ends.with_columns(value=pl.col("value").fill_null(WORST) - pl.col("value_trained").fill_null(WORST))
    new_cells = by_group(mean, ["placement"], "value", WORST)
    change_cells = by_group(change, ["placement"], "value", 0.0)
    findings = []
    for better in BETTER:
        for worse in WORSE:
            if (better,) in new_cells and (worse,) in new_cells:
                what = f"{better} - {worse}: median accuracy difference"
                findings.append(_paired(new_cells, better, worse, f"{what} on new lengths"))
                findings.append(
                    _paired(change_cells, better, worse, f"{what}, gain from {trained} to {longest:,} items")
                )
    text = "Maximum Retrieval: post and peri are better than pre and none, more so with length"
    return [make_claim(4, text, findings)]


def _paired(cells: dict, better: str, worse: str, what: str) -> Finding:
    differences = [a - b for a, b in zip(cells[better,], cells[worse,], strict=True)]
    return Finding(what, bootstrap(median, differences, 0.0), ">", 0.0)
