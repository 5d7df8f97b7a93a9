"""Claims 1 to 3: Set Complement."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from resharpen.analysis.claims.finding import Claim, Finding, make_claim
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
    """How many independent draws a draw is worth."""
    worst: float = 1.0
    """TVD of a model without one."""

    def all(self) -> list[Claim]:
        after = [
            self._best_new(placement, s, "<", GENERALIZES)
            for placement in AFTER_ATTENTION
            for s in self._lengths(placement)
            if s >= 3
        ]
        pre = [self._best_new("pre", s, ">", GENERALIZES) for s in self._lengths("pre") if s >= 3]
        peri = [self._best_new("peri", s, "<", GENERALIZES) for s in self._lengths("peri") if s >= 2]
        if 1 in self._lengths("peri"):
            peri.append(self._best_new("peri", 1, "<", TO_SOME_EXTENT))
            if 1 in self._lengths("pre"):
                peri.append(self._paired("peri", "pre", 1))
        of = f"SCT({self.v}):"
        made = [
            make_claim(1, f"{of} a norm after attention generalizes from s >= 3, pre does not", after + pre),
            make_claim(2, f"{of} peri generalizes from s >= 2, and to some extent from s = 1", peri),
            make_claim(3, f"{of} BEMA improves the best results in most settings", self._bema()),
        ]
        return [replace(claim, settings=f"sct-v{self.v}-") for claim in made]

    def _lengths(self, placement: str) -> list[int]:
        """Training lengths of a placement that leave longer inputs to be tested on."""
        return sorted(s for (p, s, weights) in self._new if p == placement and weights == "train")

    @cached_property
    def _new(self) -> Cells:
        return by_draw(self.rows.filter("has_new"), KEYS, "score_new", self.worst, self.worth)

    @cached_property
    def _all(self) -> Cells:
        return by_draw(self.rows, KEYS, "score", self.worst, self.worth)

    def _best_new(self, placement: str, s: int, says: Literal["<", ">"], threshold: float) -> Finding:
        found = quantile_interval(self._new[placement, s, "train"], BEST, threshold)
        return Finding(f"{placement}, s = {s}: best TVD on new lengths", found, says, threshold)

    def _paired(self, better: str, worse: str, s: int) -> Finding:
        found = quantile_interval(self._new[better, s, "train"] - self._new[worse, s, "train"], MEDIAN, 0.0)
        return Finding(f"{better} - {worse}, s = {s}: median TVD difference on new lengths", found, "<", 0.0)

    def _bema(self) -> list[Finding]:
        """The best TVD with BEMA is lower in the mean over all (s, placement), and in most of them. To be sure of most
        takes more draws, since one has to be sure of each."""
        gains = [
            [(1.0, f"s = {s}", self._all[p, s, "bema"]), (-1.0, f"s = {s}", train)]
            for (p, s, weights), train in self._all.items()
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
