"""What the paper claims, tested on a run.

The unit is a model at its best checkpoint; a model that diverged before one counts as the worst, TVD 1. "Best results"
are the 10% quantile over models, never the minimum. Each claim is a list of findings, a number against a threshold
with a 95% bootstrap interval over groups of draws; p-values are Holm-corrected within the claim. A claim holds if all
its findings do, fails if one of them goes significantly the other way, and is undecided otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from resharpen.analysis.scores import scores
from resharpen.analysis.statistics import Interval, bootstrap, holm, interval, picks, resample
from resharpen.engines.base import GROUP
from resharpen.experiments.store import Run

if TYPE_CHECKING:
    import polars as pl

Floats = NDArray[np.float64]
Verdict = Literal["holds", "does not hold", "undecided at this scale", "not tested"]

GENERALISES, TO_SOME_EXTENT = 0.05, 0.15
WORST = 1.0
AFTER_ATTENTION = ("post", "peri", "peri-init")


@dataclass(frozen=True)
class Finding:
    """A number that a claim says lies below or above a threshold."""

    what: str
    interval: Interval
    says: Literal["<", ">"]
    threshold: float
    p: float = 1.0
    """After Holm's correction."""

    @property
    def agrees(self) -> bool:
        estimate = self.interval.estimate
        return estimate < self.threshold if self.says == "<" else estimate > self.threshold

    @property
    def verdict(self) -> Verdict:
        if self.p >= 0.05:
            return "undecided at this scale"
        return "holds" if self.agrees else "does not hold"


@dataclass(frozen=True)
class Claim:
    number: int
    text: str
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        verdicts = {finding.verdict for finding in self.findings}
        for verdict in ("does not hold", "undecided at this scale", "holds"):
            if verdict in verdicts:
                return verdict
        return "not tested"


def claims(run: Run) -> list[Claim]:
    """The claims that a Set Complement run can speak to, for each of its vocabularies."""
    table = scores(run)
    return [
        claim
        for (v,), rows in sorted(table.group_by("v"), key=lambda pair: pair[0])
        for claim in SetComplementClaims(int(v), rows).all()
    ]


@dataclass(frozen=True)
class SetComplementClaims:
    v: int
    rows: pl.DataFrame

    def all(self) -> list[Claim]:
        after = [
            self._best_new(placement, s, "<", GENERALISES)
            for placement in AFTER_ATTENTION
            for s in self._lengths(placement)
            if s >= 3
        ]
        pre = [self._best_new("pre", s, ">", GENERALISES) for s in self._lengths("pre") if s >= 3]
        peri = [self._best_new("peri", s, "<", GENERALISES) for s in self._lengths("peri") if s == 2]
        if 1 in self._lengths("peri"):
            peri.append(self._best_new("peri", 1, "<", TO_SOME_EXTENT))
            if 1 in self._lengths("pre"):
                peri.append(self._paired("peri", "pre", 1))
        of = f"SCT({self.v}):"
        return [
            _claim(1, f"{of} a norm after attention generalises from s >= 3, pre does not", after + pre),
            _claim(2, f"{of} peri generalises from s = 2, and to some extent from s = 1", peri),
            _claim(3, f"{of} BEMA improves the best results in most settings", self._bema()),
        ]

    def _lengths(self, placement: str) -> list[int]:
        """Training lengths of a placement that leave longer inputs to be tested on."""
        return sorted(s for (p, s, weights) in self._new if p == placement and weights == "train")

    @cached_property
    def _new(self) -> dict[tuple[str, int, str], list[Floats]]:
        return self._by_group("score_new", self.rows.filter("has_new"))

    @cached_property
    def _all(self) -> dict[tuple[str, int, str], list[Floats]]:
        return self._by_group("score", self.rows)

    def _by_group(self, column: str, rows: pl.DataFrame) -> dict[tuple[str, int, str], list[Floats]]:
        """(placement, s, weights) -> the scores of each group, by draw, so that lists of one setting pair up."""
        ordered = rows.with_columns(group=rows["draw"] // GROUP, value=rows[column].fill_null(WORST)).sort("draw")
        cells: dict[tuple[str, int, str], list[Floats]] = {}
        for (placement, s, weights, _), part in ordered.group_by(
            "placement", "train_length", "weights", "group", maintain_order=True
        ):
            cells.setdefault((str(placement), int(s), str(weights)), []).append(part["value"].to_numpy())  # pyright: ignore[reportArgumentType]
        return cells

    def _best_new(self, placement: str, s: int, says: Literal["<", ">"], threshold: float) -> Finding:
        found = bootstrap(_best, self._new[placement, s, "train"], threshold)
        return Finding(f"{placement}, s = {s}: best TVD on new lengths", found, says, threshold)

    def _paired(self, better: str, worse: str, s: int) -> Finding:
        pairs = zip(self._new[better, s, "train"], self._new[worse, s, "train"], strict=True)
        found = bootstrap(_median, [a - b for a, b in pairs], 0.0)
        return Finding(f"{better} - {worse}, s = {s}: median TVD difference on new lengths", found, "<", 0.0)

    def _bema(self) -> list[Finding]:
        """The share of (s, placement) where the best TVD with BEMA is lower; groups are resampled within each s."""
        cells = [(placement, s) for placement, s, weights in self._all if weights == "train"]
        if not cells:
            return []
        groups = min(len(self._all[*cell, "train"]) for cell in cells)
        lower_RxC = np.stack([self._bema_gain(cell, picks(groups, stream=cell[1])) < 0 for cell in cells], axis=-1)
        everything = np.arange(groups)[None]
        lower_C = [self._bema_gain(cell, everything)[0] < 0 for cell in cells]
        found = interval(float(np.mean(lower_C)), lower_RxC.mean(-1), 0.5, groups)
        return [Finding(f"share of {len(cells)} settings where BEMA's best TVD is lower", found, ">", 0.5)]

    def _bema_gain(self, cell: tuple[str, int], picks_RxG: NDArray[np.int64]) -> Floats:
        train, bema = (resample(_best, self._all[*cell, weights], picks_RxG) for weights in ("train", "bema"))
        return bema - train


def _best(values: Floats) -> Floats:
    """The 10% quantile along the last axis."""
    return np.quantile(values, 0.1, axis=-1)


def _median(values: Floats) -> Floats:
    return np.median(values, axis=-1)


def _claim(number: int, text: str, findings: Sequence[Finding]) -> Claim:
    adjusted = holm([finding.interval.p for finding in findings])
    return Claim(number, text, tuple(replace(f, p=p) for f, p in zip(findings, adjusted, strict=True)))
