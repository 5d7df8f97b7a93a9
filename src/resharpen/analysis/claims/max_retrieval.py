"""Claim 4: Maximum Retrieval."""

from itertools import product

from resharpen.analysis.claims.finding import Claim, make_claim, paired_findings
from resharpen.analysis.claims.reading import DEFAULT, Reading
from resharpen.analysis.samples import by_draw, paired_only
from resharpen.analysis.scores import scored_lengths, worst_values
from resharpen.experiments.keeping.opening import RunOrReference
from resharpen.lazy import pl

BETTER, WORSE = ("post", "peri"), ("none", "pre")


def max_retrieval_claims(run: RunOrReference, worth: float = 1.0, reading: Reading = DEFAULT) -> list[Claim]:
    """Paired by draw: the accuracy on new lengths is higher with a norm after attention, and the difference is larger
    in the longer half of the lengths from the training length on than in the shorter half. (The middle length is in
    neither half.)"""
    cell, model = ["setting", "variant"], ["setting", "variant", "draw"]
    rows = paired_only(scored_lengths(run, reading.selection).filter(metric="accuracy", weights="train"))
    rows = rows.filter(pl.col("length") >= pl.col("train_length"))
    rank = pl.col("length").rank("dense").over("setting")
    half = pl.col("length").n_unique().over("setting") // 2
    longer, shorter = rank > rank.max().over("setting") - half, rank <= half
    new = rows.filter(pl.col("length") > pl.col("train_length"))
    mean = new.group_by(model).agg(pl.col("value").mean())
    change = (
        rows.with_columns(value=pl.col("value") * (longer.cast(int) - shorter.cast(int)) / half)
        .filter(half > 0)
        .group_by(model)
        .agg(pl.when(pl.col("value").is_not_null().all()).then(pl.col("value").sum()))
    )
    pairs, what = list(product(BETTER, WORSE)), "median accuracy difference"
    means = by_draw(mean, cell, "value", worst_values(run)["accuracy"], worth)
    findings = paired_findings(means, pairs, f"{what} on new lengths", ">")
    # a model that diverged gets the worst possible change: from all right to none
    gains = by_draw(change, cell, "value", -1.0, worth)
    findings += paired_findings(gains, pairs, f"{what}, gain from the shorter to the longer half of the lengths", ">")
    text = "Maximum Retrieval: post and peri are better than pre and none, more so with length"
    return [make_claim(4, text, findings)]
