"""Claims 1 to 3: Set Complement."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from resharpen.analysis.claims.finding import Claim, Finding, Floats, by_group, make_claim, median, paired_only, tenth
from resharpen.analysis.scores import scores
from resharpen.analysis.statistics import bootstrap, interval, picks, resample
from resharpen.experiments.keeping.store import Run
from resharpen.parts import PAPER_PLACEMENTS

if TYPE_CHECKING:
    import polars as pl

GENERALISES, TO_SOME_EXTENT = 0.05, 0.15
WORST = 1.0
"""The TVD of a model that has none."""
AFTER_ATTENTION = ("post", "peri", "peri-init")
KEYS = ("variant", "train_length", "weights")


def set_complement_claims(run: Run) -> list[Claim]:
    """The claims for each vocabulary of a run."""
    return [
        claim
        for (v,), rows in sorted(paired_only(scores(run)).group_by("v"), key=lambda pair: pair[0])
        for claim in SetComplementClaims(int(v), rows).all()  # pyright: ignore[reportArgumentType]
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
            make_claim(1, f"{of} a norm after attention generalises from s >= 3, pre does not", after + pre),
            make_claim(2, f"{of} peri generalises from s = 2, and to some extent from s = 1", peri),
            make_claim(3, f"{of} BEMA improves the best results in most settings", self._bema()),
        ]

    def _lengths(self, placement: str) -> list[int]:
        """Training lengths of a placement that leave longer inputs to be tested on."""
        return sorted(s for (p, s, weights) in self._new if p == placement and weights == "train")

    @cached_property
    def _new(self) -> dict[tuple[Any, ...], list[Floats]]:
        return by_group(self.rows.filter("has_new"), KEYS, "score_new", WORST)

    @cached_property
    def _all(self) -> dict[tuple[Any, ...], list[Floats]]:
        return by_group(self.rows, KEYS, "score", WORST)

    def _best_new(self, placement: str, s: int, says: Literal["<", ">"], threshold: float) -> Finding:
        found = bootstrap(tenth, self._new[placement, s, "train"], threshold)
        return Finding(f"{placement}, s = {s}: best TVD on new lengths", found, says, threshold)

    def _paired(self, better: str, worse: str, s: int) -> Finding:
        pairs = zip(self._new[better, s, "train"], self._new[worse, s, "train"], strict=True)
        found = bootstrap(median, [a - b for a, b in pairs], 0.0)
        return Finding(f"{better} - {worse}, s = {s}: median TVD difference on new lengths", found, "<", 0.0)

    def _bema(self) -> list[Finding]:
        """The share of (s, placement) where the best TVD with BEMA is lower; groups are resampled within each s."""
        cells = [(p, s) for p, s, weights in self._all if weights == "train" and p in PAPER_PLACEMENTS]
        if not cells:
            return []
        groups = min(len(self._all[*cell, "train"]) for cell in cells)
        lower_RxC = np.stack([self._bema_gain(cell, picks(groups, stream=cell[1])) < 0 for cell in cells], axis=-1)
        everything = np.arange(groups)[None]
        lower_C = [self._bema_gain(cell, everything)[0] < 0 for cell in cells]
        found = interval(float(np.mean(lower_C)), lower_RxC.mean(-1), 0.5, groups)
        return [Finding(f"share of {len(cells)} settings where BEMA's best TVD is lower", found, ">", 0.5)]

    def _bema_gain(self, cell: tuple[str, int], picks_RxG: NDArray[np.int64]) -> Floats:
        train, bema = (resample(tenth, self._all[*cell, weights], picks_RxG) for weights in ("train", "bema"))
        return bema - train
