"""Claims 5 to 7: bounded Dyck and Tomita languages.

The score of a model is its mean TVD or mean ROC AUC over bins of lengths; "on new lengths": over bins longer than the
training length. A logit separates if its AUC is above one minus the threshold, 0.95; the smallest difference in AUC
that matters is the threshold, 0.05.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, product

from resharpen.analysis.claims.finding import Claim, Finding, make_claim, paired_findings
from resharpen.analysis.claims.reading import DEFAULT, Reading
from resharpen.analysis.samples import MEDIAN, Cells, by_draw, paired_differences, paired_only
from resharpen.analysis.scores import scored_lengths, worst_values
from resharpen.analysis.statistics import Interval, Sample, quantile_interval
from resharpen.experiments.keeping.opening import RunOrReference
from resharpen.lazy import pl
from resharpen.parts import PAPER_PLACEMENTS

AFTER_BLOCK = ("post", "peri", "peri-init")
PERI, NOT_PERI = ("peri", "peri-init"), ("pre", "post")
LONGEST_OF_3 = 460


@dataclass(frozen=True)
class Measured:
    rows: pl.DataFrame
    """All values at the selected checkpoints."""
    worth: float
    """Effective number of draws per draw."""
    worst: dict[str, float]
    """Metric -> the value that a model without values gets."""
    reading: Reading

    def means(self, metric: str, weights: str = "train", new: bool = False) -> Cells:
        """(setting, variant) -> the mean of each model, over all or only new lengths."""
        of = self.rows.filter(metric=metric, weights=weights)
        if new:
            of = of.filter(pl.col("length") > pl.col("train_length"))
        mean = of.group_by("setting", "variant", "draw").agg(pl.col("value").mean())
        return by_draw(mean, ["setting", "variant"], "value", self.worst[metric], self.worth)


def dyck_claims(run: RunOrReference, worth: float = 1.0, reading: Reading = DEFAULT) -> list[Claim]:
    """Claim 5 if the run has Dyck(8,10), claim 6 if it has any other."""
    rows, main = paired_only(scored_lengths(run, reading.selection)), (pl.col("k") == 8) & (pl.col("m") == 10)
    tests = ((_main_dyck, rows.filter(main)), (_further_dyck, rows.filter(~main)))
    return [test(Measured(part, worth, worst_values(run), reading)) for test, part in tests if not part.is_empty()]


def tomita_claims(run: RunOrReference, worth: float = 1.0, reading: Reading = DEFAULT) -> list[Claim]:
    rows = paired_only(scored_lengths(run, reading.selection))
    languages = rows.filter(pl.col("length") <= LONGEST_OF_3, n=3), rows.filter(n=7)
    three, seven = (Measured(part, worth, worst_values(run), reading).means("auc", new=True) for part in languages)
    what = f"median AUC difference in language 3 on new lengths to {LONGEST_OF_3}"
    findings = paired_findings(three, product(PERI, NOT_PERI), what, ">") + _no_difference(seven, reading.threshold)
    text = f"Tomita 3: the peri placements are better up to length {LONGEST_OF_3}; Tomita 7: no difference"
    return [make_claim(7, text, findings)]


def _main_dyck(measured: Measured) -> Claim:
    pairs = [(placement, "pre") for placement in AFTER_BLOCK]
    findings = paired_findings(measured.means("tvd", new=True), pairs, "median TVD difference on new lengths", "<")
    text = "Dyck(8,10): a norm after the block is better at length; BEMA helps the best a little"
    return make_claim(5, text, findings + _bema_helps(measured))


def _further_dyck(measured: Measured) -> Claim:
    """Comparisons are means over settings: eight findings each would have too little power after Holm's correction.
    Thresholds are one finding per setting: a mean would hide a setting that misses it."""
    train, bema, auc = measured.means("tvd"), measured.means("tvd", "bema"), measured.means("auc", new=True)
    reading, separates = measured.reading, 1 - measured.reading.threshold
    by_k, by_m = _ends(measured.rows, "k", "m"), _ends(measured.rows, "m", "k")
    pairs = [(placement, "pre") for placement in AFTER_BLOCK] + [(placement, "post") for placement in PERI]
    findings = [
        *paired_findings(measured.means("tvd", new=True), pairs, "median TVD difference on new lengths", "<"),
        *_contrast(reading, "reduction of the best TVD by BEMA, largest - smallest k", [(1, train), (-1, bema)], by_k),
        # the best, not the median: the TVD of a model that learned nothing also depends on m
        *_contrast(reading, "best TVD, smallest - largest m", [(-1, train)], by_m),
    ]
    for setting, placement in sorted(auc):
        if placement == "peri":
            what = f"{setting}, peri: best AUC of EOS on new lengths"
            best = reading.of_higher(auc[setting, placement], separates)
            findings.append(Finding(what, best, ">", separates))
    text = (
        "Further Dyck: peri is best, pre worst; BEMA helps more with more types; TVD is worse with smaller m; "
        "with peri the EOS logit separates complete from incomplete sequences"
    )
    return make_claim(6, text, findings)


def _bema_helps(measured: Measured) -> list[Finding]:
    """One finding per placement, over all lengths: BEMA averages out the noise of sampled targets at every length."""
    bema, train = measured.means("tvd", "bema"), measured.means("tvd")
    findings = []
    for placement in PAPER_PLACEMENTS:
        cells = [cell for cell in sorted(train) if cell[1] == placement]
        terms = [(sign / len(cells), cell[0], of[cell]) for cell in cells for sign, of in ((1, bema), (-1, train))]
        if terms:
            what = f"{placement}: best TVD with BEMA - with training weights"
            findings.append(Finding(what, measured.reading.of_sum(terms, 0.0), "<", 0.0))
    return findings


def _contrast(
    reading: Reading, what: str, signed: list[tuple[int, Cells]], ends: list[tuple[str, str]]
) -> list[Finding]:
    """Finding: the signed sum of best results in the first setting of a pair minus that in the second, averaged over
    pairs and placements of the paper, is above zero."""
    pairs = [
        (largest, smallest, placement)
        for (largest, smallest), placement in product(ends, PAPER_PLACEMENTS)
        if all((largest, placement) in cells and (smallest, placement) in cells for _, cells in signed)
    ]
    terms = [
        (sign * side / len(pairs), setting, cells[setting, placement])
        for largest, smallest, placement in pairs
        for side, setting in ((1, largest), (-1, smallest))
        for sign, cells in signed
    ]
    return [Finding(what, reading.of_sum(terms, 0.0), ">", 0.0)] if terms else []


def _no_difference(cells: Cells, same: float) -> list[Finding]:
    """For any two placements of the paper the paired median difference is small: one finding per pair."""
    return [
        Finding(f"{setting}, {a} and {b}: |median AUC difference| on new lengths", _size(sample, same), "<", same)
        for a, b in combinations(PAPER_PLACEMENTS, 2)
        for setting, sample in paired_differences(cells, a, b).items()
    ]


def _size(sample: Sample, same: float) -> Interval:
    """The absolute value of the median: `same` is excluded if both `same` and -`same` are."""
    above, below = (quantile_interval(sample, MEDIAN, threshold) for threshold in (same, -same))
    low, high = above.low, above.high
    return Interval(abs(above.estimate), max(low, -high, 0.0), max(high, -low), max(above.p, below.p))


def _ends(rows: pl.DataFrame, by: str, same: str) -> list[tuple[str, str]]:
    """Pairs of settings with the largest and with the smallest `by` among those with equal `same`."""
    pairs = []
    for _, part in rows.select("setting", by, same).unique().group_by(same):
        if part[by].n_unique() > 1:
            largest, smallest = (part.filter(part[by] == end)["setting"] for end in (part[by].max(), part[by].min()))
            pairs += product(largest, smallest)
    return sorted(pairs)
