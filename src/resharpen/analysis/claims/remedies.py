"""Claims 8 and 9, our own: which remedy for dispersion helps on which task.

On Set Complement good attention is nearly uniform, and the mean of the values shrinks with length: a norm after
attention should cure that, sharper attention should not. On Maximum Retrieval one item must keep its weight among n:
log n scaling should cure that, a norm after attention should not.

The score of a model is its distance from perfect on lengths longer than trained: the mean TVD, or one minus the mean
accuracy. As in the claims of the paper, the best results count: the 10% quantile over models. A remedy

    cures            if the best distance is below 0.05
    does not cure    if the best distance is above 0.05, and less than 0.05 below that without the remedy

"Does not cure" is therefore a positive finding, not the absence of one. A remedy in between, which helps by more and
still does not cure, contradicts both.
"""

from __future__ import annotations

from collections.abc import Iterable

from resharpen.analysis.claims.finding import Claim, Finding, Sign, best_finding, make_claim
from resharpen.analysis.samples import BEST, Cells, by_draw, paired_only
from resharpen.analysis.scores import scores, task_of
from resharpen.analysis.statistics import sum_interval
from resharpen.experiments.keeping.opening import RunOrReference
from resharpen.tasks import MaxRetrieval, SetComplement

CURED = 0.05
"""The distance from perfect below which a model generalizes: a TVD of 0.05, an accuracy of 0.95."""
NO_CURE = 0.05
"""The smallest reduction of that distance that matters."""
SHARPER = ("log-n", "ssmax")
NUMBERS = (8, 9)


def remedies_claims(run: RunOrReference, worth: float = 1.0) -> list[Claim]:
    """Claim 8 or 9 for a run with sharper attention; none for others."""
    if task_of(run).kind == SetComplement.kind:
        cells = _distances(run, worth, shortest=3)
        findings = _no_cures(cells, [(f"{p}+{a}", p) for p in ("none", "pre") for a in SHARPER])
        findings += _best(cells, ("none", "pre"), ">") + _best(cells, ("pre-final", "peri"), "<") if findings else []
        text = "from s >= 3 sharper attention does not cure Set Complement, a norm after attention does"
        number = NUMBERS[0]
    elif task_of(run).kind == MaxRetrieval.kind:
        cells = _distances(run, worth)
        findings = _best(cells, [f"none+{a}" for a in SHARPER], "<")
        findings += _best(cells, ["none"], ">") + _no_cures(cells, [("post", "none")]) if findings else []
        text = "a norm after attention does not cure Maximum Retrieval at length, log n scaling does"
        number = NUMBERS[1]
    else:
        return []
    return [make_claim(number, f"Ours: {text}", findings)] if findings else []


def _distances(run: RunOrReference, worth: float, shortest: int = 0) -> Cells:
    """(setting, variant) -> distances from perfect on new lengths, for training lengths of at least `shortest`."""
    import polars as pl

    rows = paired_only(scores(run)).filter(pl.col("has_new"), pl.col("train_length") >= shortest, weights="train")
    lower = task_of(run).lower_is_better
    away = rows.with_columns(distance=pl.col("score_new") if lower else 1 - pl.col("score_new"))
    return by_draw(away, ["setting", "variant"], "distance", 1.0, worth)


def _best(cells: Cells, variants: Iterable[str], says: Sign) -> list[Finding]:
    return [
        best_finding(f"{setting}, {variant}: best distance", cells[setting, variant], says, CURED)
        for variant in variants
        for setting, of in cells
        if of == variant
    ]


def _no_cures(cells: Cells, remedies: Iterable[tuple[str, str]]) -> list[Finding]:
    findings = []
    for remedy, without in remedies:
        for setting in [setting for setting, variant in cells if variant == remedy and (setting, without) in cells]:
            terms = [(1.0, setting, cells[setting, without]), (-1.0, setting, cells[setting, remedy])]
            reduction = sum_interval(terms, BEST, NO_CURE)
            what = f"{setting}, {remedy}:"
            findings += [
                best_finding(f"{what} best distance", cells[setting, remedy], ">", CURED),
                Finding(f"{what} reduction of the best distance of {without}", reduction, "<", NO_CURE),
            ]
    return findings
