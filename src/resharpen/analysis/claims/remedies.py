"""Claims 8 and 9, our own: is there one dispersion or two?

On Set Complement good attention is nearly uniform and what shrinks with length is the mean of the values: a norm after
attention should cure it, sharper attention should not. On Maximum Retrieval one item must keep its weight among n: log
n scaling should cure it, a norm after attention should not.

The number of a model is its distance from perfect on lengths longer than trained: the mean TVD, or one minus the mean
accuracy. As in the claims of the paper, results are the best ones, the 10% quantile over models. A remedy

    cures            if the best are less than 0.05 from perfect
    does not cure    if the best are more than 0.05 from perfect, and less than 0.05 nearer than without the remedy

so that "does not" is shown and not just not refuted: it takes a disease that is still there, and a difference whose
interval lies below a margin. What lies between, a remedy that helps by more and still does not cure, contradicts both.
"""

from __future__ import annotations

from collections.abc import Iterable

from resharpen.analysis.claims.finding import Claim, Finding, make_claim
from resharpen.analysis.samples import BEST, Cells, by_draw, paired_only
from resharpen.analysis.scores import scores, task_of
from resharpen.analysis.statistics import quantile_interval, sum_interval
from resharpen.experiments.keeping.opening import RunOrReference
from resharpen.tasks import MaxRetrieval, SetComplement

CURED = 0.05
"""The distance from perfect below which we say that a model generalizes: a TVD of 0.05, an accuracy of 0.95."""
NO_CURE = 0.05
"""What a remedy may take off that distance and still be none."""
SHARPER = ("log-n", "ssmax")
NUMBERS = (8, 9)


def remedies_claims(run: RunOrReference, worth: float = 1.0) -> list[Claim]:
    """Claim 8 or 9 for a run with sharper attention; none for others."""
    if task_of(run).kind == SetComplement.kind:
        cells = _distances(run, worth, shortest=3)
        findings = _no_cures(cells, [(f"{p}+{a}", p) for p in ("none", "pre") for a in SHARPER])
        findings += _ill(cells, ("none", "pre")) + _cures(cells, ("pre-final", "peri")) if findings else []
        text = "from s >= 3 sharper attention does not cure Set Complement, a norm after attention does"
        number = NUMBERS[0]
    elif task_of(run).kind == MaxRetrieval.kind:
        cells = _distances(run, worth)
        findings = _cures(cells, [f"none+{a}" for a in SHARPER])
        findings += _ill(cells, ("none",)) + _no_cures(cells, [("post", "none")]) if findings else []
        text = "a norm after attention does not cure Maximum Retrieval at length, log n scaling does"
        number = NUMBERS[1]
    else:
        return []
    return [make_claim(number, f"Ours: {text}", findings)] if findings else []


def _distances(run: RunOrReference, worth: float, shortest: int = 0) -> Cells:
    """(setting, variant) -> distances from perfect on new lengths, of those trained on at least so many tokens."""
    import polars as pl

    rows = paired_only(scores(run)).filter(pl.col("has_new"), pl.col("train_length") >= shortest, weights="train")
    lower = task_of(run).lower_is_better
    away = rows.with_columns(distance=pl.col("score_new") if lower else 1 - pl.col("score_new"))
    return by_draw(away, ["setting", "variant"], "distance", 1.0, worth)


def _ill(cells: Cells, untreated: Iterable[str]) -> list[Finding]:
    """Where the best do well without a remedy there is nothing to cure."""
    return [
        Finding(f"{setting}, {variant}: best distance", quantile_interval(sample, BEST, CURED), ">", CURED)
        for (setting, variant), sample in cells.items()
        if variant in untreated
    ]


def _cures(cells: Cells, remedies: Iterable[str]) -> list[Finding]:
    return [
        Finding(f"{setting}, {remedy}: best distance", quantile_interval(sample, BEST, CURED), "<", CURED)
        for remedy in remedies
        for (setting, variant), sample in cells.items()
        if variant == remedy
    ]


def _no_cures(cells: Cells, remedies: Iterable[tuple[str, str]]) -> list[Finding]:
    findings = []
    for remedy, without in remedies:
        for setting in [setting for setting, variant in cells if variant == remedy and (setting, without) in cells]:
            with_it, without_it = cells[setting, remedy], cells[setting, without]
            taken_off = sum_interval([(1.0, setting, without_it), (-1.0, setting, with_it)], BEST, NO_CURE)
            best = quantile_interval(with_it, BEST, CURED)
            findings += [
                Finding(f"{setting}, {remedy}: best distance", best, ">", CURED),
                Finding(
                    f"{setting}, {remedy}: what it takes off the best distance of {without}", taken_off, "<", NO_CURE
                ),
            ]
    return findings
