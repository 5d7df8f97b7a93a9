"""Claim 4: Maximum Retrieval."""

from __future__ import annotations

from itertools import product

from resharpen.analysis.claims.finding import Claim, by_group, compare, make_claim, paired_only
from resharpen.experiments.keeping.store import Run

BETTER, WORSE = ("post", "peri"), ("none", "pre")
WORST = 0.0
"""The accuracy of a model that has none."""


def max_retrieval_claims(run: Run) -> list[Claim]:
    """Pair by pair: the accuracy on new lengths is higher with a norm after attention, and by more at the longest
    length than at the longest trained one."""
    import polars as pl

    models = run.table("models").select("model", "setting", "variant", "draw", "train_length")
    lengths = run.table("lengths").filter(metric="accuracy", selection="best", weights="train").drop("count")
    rows = paired_only(lengths.join(models, on="model"))
    new = rows.filter(pl.col("length") > pl.col("train_length"))
    mean = new.group_by("setting", "variant", "draw").agg(pl.col("value").fill_null(WORST).mean())
    longest, trained = new["length"].max(), rows["train_length"].max()
    ends = rows.filter(pl.col("length") == longest).join(
        rows.filter(pl.col("length") == trained), on=["setting", "variant", "draw"], suffix="_trained"
    )
    change = ends.with_columns(value=pl.col("value").fill_null(WORST) - pl.col("value_trained").fill_null(WORST))
    pairs, cell, what = list(product(BETTER, WORSE)), ["setting", "variant"], "median accuracy difference"
    findings = compare(by_group(mean, cell, "value", WORST), pairs, f"{what} on new lengths", ">")
    if findings:  # there are new lengths
        gain = f"{what}, gain from {trained} to {longest:,} items"
        findings += compare(by_group(change, cell, "value", 0.0), pairs, gain, ">")
    text = "Maximum Retrieval: post and peri are better than pre and none, more so with length"
    return [make_claim(4, text, findings)]
