"""Claims 1 to 3: Set Complement."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from resharpen.analysis.claims.finding import Claim, Finding, Sign, best_finding, make_claim
from resharpen.analysis.samples import BEST, MEDIAN, Cells, by_draw, paired_only
from resharpen.analysis.scores import scores, worst_values
from resharpen.analysis.statistics import most_below, quantile_interval, sum_interval
from resharpen.experiments.keeping.opening import RunOrReference
from resharpen.parts import PAPER_PLACEMENTS

if TYPE_CHECKING:
    import polars as pl

GENERALIZES, TO_SOME_EXTENT = 0.05, 0.15
AFTER_ATTENTION = ("post", "peri", "peri-init")
KEYS = ("variant", "train_length", "weights")


def set_complement_claims(run: RunOrReference, worth: float = 1.0) -> list[Claim]:
    """The claims for each vocabulary of a run."""
    worst = worst_values(run)["tvd"]
    return [
        claim
        for (v,), rows in sorted(paired_only(scores(run)).group_by("v"), key=lambda pair: pair[0])
        for claim in SetComplementClaims(int(v), rows, worth, worst).all()  # pyright: ignore[reportArgumentType]
    ]


@dataclass(frozen=True)
class SetComplementClaims:
    v: int
    rows: pl.DataFrame
    worth: float
    """Effective number of draws per draw."""
    worst: float = 1.0
    """TVD of a model that has none."""

    def all(self) -> list[Claim]:
        after = [finding for p in AFTER_ATTENTION for finding in self._best_new(p, "<", from_s=3)]
        peri = self._best_new("peri", "<", from_s=2)
        if first := self._new.get(("peri", 1, "train")):
            peri.append(best_finding("peri, s = 1: best TVD on new lengths", first, "<", TO_SOME_EXTENT))
            if pre := self._new.get(("pre", 1, "train")):
                difference = quantile_interval(first - pre, MEDIAN, 0.0)
                peri.append(Finding("peri - pre, s = 1: median TVD difference on new lengths", difference, "<", 0.0))
        of = f"SCT({self.v}):"
        made = [
            make_claim(
                1,
                f"{of} a norm after attention generalizes from s >= 3, pre does not",
                after + self._best_new("pre", ">", from_s=3),
            ),
            make_claim(2, f"{of} peri generalizes from s >= 2, and to some extent from s = 1", peri),
            make_claim(3, f"{of} BEMA improves the best results in most settings", self._bema()),
        ]
        return [replace(claim, settings=f"sct-v{self.v}-") for claim in made]

    @cached_property
    def _new(self) -> Cells:
        return by_draw(self.rows.filter("has_new"), KEYS, "score_new", self.worst, self.worth)

    def _best_new(self, placement: str, says: Sign, from_s: int) -> list[Finding]:
        """One finding per training length from `from_s` on that leaves longer inputs to test on."""
        return [
            best_finding(f"{placement}, s = {s}: best TVD on new lengths", sample, says, GENERALIZES)
            for (p, s, weights), sample in sorted(self._new.items(), key=lambda cell: cell[0])
            if p == placement and weights == "train" and s >= from_s
        ]

    def _bema(self) -> list[Finding]:
        """The best TVD with BEMA is lower in the mean over all (s, placement), and in most of them. The latter takes
        more draws, since each has to be certain."""
        cells = by_draw(self.rows, KEYS, "score", self.worst, self.worth)
        gains = [
            [(1.0, f"s = {s}", cells[p, s, "bema"]), (-1.0, f"s = {s}", train)]
            for (p, s, weights), train in cells.items()
            if weights == "train" and p in PAPER_PLACEMENTS
        ]
        if not gains:
            return []
        terms = [(sign / len(gains), s, sample) for gain in gains for sign, s, sample in gain]
        mean = sum_interval(terms, BEST, 0.0)
        share = most_below([sum_interval(gain, BEST, 0.0) for gain in gains], 0.0)
        return [
            Finding(f"mean of {len(gains)} settings: best TVD with BEMA - with training weights", mean, "<", 0.0),
            Finding(f"share of {len(gains)} settings where BEMA's best TVD is lower", share, ">", 0.5),
        ]
