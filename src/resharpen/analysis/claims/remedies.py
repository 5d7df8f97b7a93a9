"""Claims 8 and 9, our own: which remedy for dispersion helps on which task.

On Set Complement good attention is nearly uniform, and the mean of the values shrinks with length: a norm after
attention should solve this, sharper attention should not. On Maximum Retrieval one item must keep its weight among n
items: log n scaling should solve this, a norm after attention should not.

The score of a model is its distance from perfect on lengths longer than trained: the mean TVD, or one minus the mean
accuracy. As in the claims of the paper, the best results count: the 10% quantile over models. A remedy

    solves           if the best distance is below 0.05
    does not solve   if the best distance is above 0.05, and less than 0.05 below that without the remedy

A remedy in between, which helps by more than 0.05 but does not solve the task, contradicts both.
"""

from collections.abc import Iterable

from resharpen.analysis.claims.finding import Claim, Finding, Sign, make_claim
from resharpen.analysis.claims.reading import DEFAULT, Reading
from resharpen.analysis.samples import Cells, by_draw, paired_only
from resharpen.analysis.scores import scores, task_of
from resharpen.experiments.keeping.opening import RunOrReference
from resharpen.lazy import pl
from resharpen.tasks import MaxRetrieval, SetComplement

SHARPER = ("log-n", "ssmax")
NUMBERS = (8, 9)


def remedies_claims(run: RunOrReference, worth: float = 1.0, reading: Reading = DEFAULT) -> list[Claim]:
    """Claim 8 or 9 for a run with sharper attention; none for others."""
    if task_of(run).kind == SetComplement.kind:
        cells = _distances(run, worth, reading, shortest=3)
        findings = _not_solved(reading, cells, [(f"{p}+{a}", p) for p in ("none", "pre") for a in SHARPER])
        if findings:
            findings += _best(reading, cells, ("none", "pre"), ">") + _best(reading, cells, ("pre-final", "peri"), "<")
        text = "from s >= 3 sharper attention does not solve Set Complement, a norm after attention does"
        number = NUMBERS[0]
    elif task_of(run).kind == MaxRetrieval.kind:
        cells = _distances(run, worth, reading)
        findings = _best(reading, cells, [f"none+{a}" for a in SHARPER], "<")
        if findings:
            findings += _best(reading, cells, ["none"], ">") + _not_solved(reading, cells, [("post", "none")])
        text = "a norm after attention does not solve Maximum Retrieval at length, log n scaling does"
        number = NUMBERS[1]
    else:
        return []
    return [make_claim(number, f"Ours: {text}", findings)] if findings else []


def _distances(run: RunOrReference, worth: float, reading: Reading, shortest: int = 0) -> Cells:
    """(setting, variant) -> distances from perfect on new lengths, for training lengths of at least `shortest`."""
    found = paired_only(scores(run, reading.selection))
    rows = found.filter(pl.col("has_new"), pl.col("train_length") >= shortest, weights="train")
    lower = task_of(run).lower_is_better
    away = rows.with_columns(distance=pl.col("score_new") if lower else 1 - pl.col("score_new"))
    return by_draw(away, ["setting", "variant"], "distance", 1.0, worth)


def _best(reading: Reading, cells: Cells, variants: Iterable[str], says: Sign) -> list[Finding]:
    solved = reading.threshold
    return [
        Finding(f"{setting}, {variant}: best distance", reading.of(cells[setting, variant], solved), says, solved)
        for variant in variants
        for setting, of in cells
        if of == variant
    ]


def _not_solved(reading: Reading, cells: Cells, remedies: Iterable[tuple[str, str]]) -> list[Finding]:
    findings, least = [], reading.threshold
    for remedy, without in remedies:
        for setting in [setting for setting, variant in cells if variant == remedy and (setting, without) in cells]:
            terms = [(1.0, setting, cells[setting, without]), (-1.0, setting, cells[setting, remedy])]
            reduction = reading.of_sum(terms, least)
            what = f"{setting}, {remedy}:"
            findings += [
                Finding(f"{what} best distance", reading.of(cells[setting, remedy], least), ">", least),
                Finding(f"{what} reduction of the best distance of {without}", reduction, "<", least),
            ]
    return findings
