"""Claims 1 to 3: Set Complement."""

from __future__ import annotations

from dataclasses import replace

from resharpen.analysis.claims.finding import Claim, Finding, Sign, make_claim
from resharpen.analysis.claims.reading import DEFAULT, UNDEFINED, Reading
from resharpen.analysis.samples import MEDIAN, Cells, by_draw, paired_only
from resharpen.analysis.scores import scores, worst_values
from resharpen.analysis.statistics import most_below, quantile_interval
from resharpen.experiments.keeping.opening import RunOrReference
from resharpen.lazy import pl
from resharpen.parts import PAPER_PLACEMENTS

TO_SOME_EXTENT = 0.15
AFTER_ATTENTION = ("post", "peri", "peri-init")
KEYS = ("variant", "train_length", "weights")


def set_complement_claims(run: RunOrReference, worth: float = 1.0, reading: Reading = DEFAULT) -> list[Claim]:
    """The claims for each vocabulary of a run."""
    worst = worst_values(run)["tvd"]
    vocabularies = sorted(paired_only(scores(run, reading.selection)).group_by("v"), key=lambda pair: pair[0])
    return [claim for (v,), rows in vocabularies for claim in claims_on(rows, f"{v}", worst, worth, reading)]


def claims_on(rows: pl.DataFrame, v: str, worst: float, worth: float, reading: Reading = DEFAULT) -> list[Claim]:
    """The claims for one vocabulary, from its scores; a model without a score has the worst TVD."""
    new = by_draw(rows.filter("has_new"), KEYS, "score_new", worst, worth)
    after = [finding for placement in AFTER_ATTENTION for finding in _best(reading, new, placement, "<", from_s=3)]
    peri = _best(reading, new, "peri", "<", from_s=2)
    if first := new.get(("peri", 1, "train")):
        extent = reading.of(first, TO_SOME_EXTENT)
        peri.append(Finding("peri, s = 1: best TVD on new lengths", extent, "<", TO_SOME_EXTENT))
        if pre := new.get(("pre", 1, "train")):
            difference = quantile_interval(first - pre, MEDIAN, 0.0)
            peri.append(Finding("peri - pre, s = 1: median TVD difference on new lengths", difference, "<", 0.0))
    texts = {
        "a norm after attention generalizes from s >= 3, pre does not": after
        + _best(reading, new, "pre", ">", from_s=3),
        "peri generalizes from s >= 2, and to some extent from s = 1": peri,
        "BEMA improves the best results in most settings": _bema(reading, by_draw(rows, KEYS, "score", worst, worth)),
    }
    made = [make_claim(number, f"SCT({v}): {text}", texts[text]) for number, text in enumerate(texts, 1)]
    return [replace(claim, settings=f"sct-v{v}-") for claim in made]


def _best(reading: Reading, cells: Cells, placement: str, says: Sign, from_s: int) -> list[Finding]:
    """One finding per training length from `from_s` on for which there are longer inputs."""
    near = reading.threshold
    return [
        Finding(f"{placement}, s = {s}: best TVD on new lengths", reading.of(sample, near), says, near)
        for (p, s, weights), sample in sorted(cells.items(), key=lambda cell: cell[0])
        if p == placement and weights == "train" and s >= from_s
    ]


def _bema(reading: Reading, cells: Cells) -> list[Finding]:
    """The best TVD with BEMA is lower in the mean over all (s, placement), and in most of them. The latter needs more
    draws, because each comparison must be significant."""
    gains = [
        [(1.0, f"s = {s}", cells[p, s, "bema"]), (-1.0, f"s = {s}", train)]
        for (p, s, weights), train in cells.items()
        if weights == "train" and p in PAPER_PLACEMENTS
    ]
    if not gains:
        return []
    terms = [(sign / len(gains), s, sample) for gain in gains for sign, s, sample in gain]
    mean = reading.of_sum(terms, 0.0)
    each = [reading.of_sum(gain, 0.0) for gain in gains]
    share = UNDEFINED if UNDEFINED in each else most_below(each, 0.0)
    return [
        Finding(f"mean of {len(gains)} settings: best TVD with BEMA - with training weights", mean, "<", 0.0),
        Finding(f"share of {len(gains)} settings where BEMA's best TVD is lower", share, ">", 0.5, share=True),
    ]
