"""Claim 4: Maximum Retrieval."""

from __future__ import annotations

from itertools import product

from resharpen.analysis.claims.finding import Claim, by_draw, compare, make_claim, paired_only
from resharpen.analysis.scores import WORST, scored_lengths
from resharpen.experiments.keeping.results import Results

BETTER, WORSE = ("post", "peri"), ("none", "pre")


def max_retrieval_claims(run: Results, worth: float = 1.0) -> list[Claim]:
    """Pair by pair: the accuracy on new lengths is higher with a norm after attention, and by more at the longest
    length than at the longest trained one."""
    import polars as pl

    rows = paired_only(scored_lengths(run).filter(metric="accuracy", weights="train"))
    new = rows.filter(pl.col("length") > pl.col("train_length"))
    mean = new.group_by("setting", "variant", "draw").agg(pl.col("value").mean())
    longest, trained = new["length"].max(), rows["train_length"].max()
    ends = rows.filter(pl.col("length") == longest).join(
        rows.filter(pl.col("length") == trained), on=["setting", "variant", "draw"], suffix="_trained"
    )
    change = ends.with_columns(value=pl.col("value") - pl.col("value_trained"))
    pairs, cell, what = list(product(BETTER, WORSE)), ["setting", "variant"], "median accuracy difference"
    means = by_draw(mean, cell, "value", WORST["accuracy"], worth)
    findings = compare(means, pairs, f"{what} on new lengths", ">")
    if findings:  # there are new lengths
        gain = f"{what}, gain from {trained} to {longest:,} items"
        # a model that is lost has the worst change there is: from all right to none
        findings += compare(by_draw(change, cell, "value", -1.0, worth), pairs, gain, ">")
    text = "Maximum Retrieval: post and peri are better than pre and none, more so with length"
    return [make_claim(4, text, findings)]
