"""Claims and findings: a number, its interval, what is claimed of it, and the verdict.

The unit is a model at its best checkpoint; one that diverged before any counts as the worst. "Best results" are the 10%
quantile over models (90% where more is better), never the extreme. Each claim is a list of findings, a number against a
threshold with a 95% bootstrap interval over groups of draws; p-values are Holm-corrected within the claim. A claim
holds if all its findings do, fails if one of them goes significantly the other way, and is undecided otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from resharpen.analysis.statistics import Interval, bootstrap_sum, holm
from resharpen.streams import GROUP

if TYPE_CHECKING:
    import polars as pl

Floats = NDArray[np.float64]
Cells = dict[tuple[Any, ...], list[Floats]]
"""What a cell is, such as (setting, placement) -> the values of each group of draws."""
Verdict = Literal["holds", "does not hold", "undecided at this scale", "not tested"]


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


def make_claim(number: int, text: str, findings: Sequence[Finding]) -> Claim:
    """A claim with the p-values of its findings corrected for their number."""
    adjusted = holm([finding.interval.p for finding in findings])
    return Claim(number, text, tuple(replace(f, p=p) for f, p in zip(findings, adjusted, strict=True)))


def paired_only(rows: pl.DataFrame) -> pl.DataFrame:
    """The draws of each setting that every placement has: in an unfinished run some are ahead of others."""
    import polars as pl

    each = pl.struct("variant", "weights").n_unique()
    return rows.filter(each.over("setting", "draw") == each.over("setting"))


def by_group(rows: pl.DataFrame, keys: Sequence[str], value: str, worst: float) -> Cells:
    """keys -> the values of each group of draws, by draw, so that lists with the same draws pair up."""
    ordered = rows.with_columns(group=rows["draw"] // GROUP, value=rows[value].fill_null(worst)).sort("draw")
    cells: Cells = {}
    for (*key, _), part in ordered.group_by(*keys, "group", maintain_order=True):
        cells.setdefault(tuple(key), []).append(part["value"].to_numpy())
    return cells


def differences(cells: Cells, a: str, b: str) -> dict[str, list[Floats]]:
    """Placement a minus placement b, draw by draw, in every setting that has both; cells are (setting, placement)."""
    return {
        setting: [x - y for x, y in zip(cells[setting, a], cells[setting, b], strict=True)]
        for setting, placement in sorted(cells)
        if placement == a and (setting, b) in cells
    }


def compare(cells: Cells, pairs: Iterable[tuple[str, str]], what: str, says: Literal["<", ">"]) -> list[Finding]:
    """For every pair of placements that can be compared: the paired median difference, the first minus the second.

    With several settings it is the mean of their medians. Draw i is another draw in each of them, so there is nothing
    to pair across settings, and all count alike however many draws each has.
    """
    findings = []
    for a, b in pairs:
        of_setting = differences(cells, a, b)
        if of_setting:
            terms = [(1 / len(of_setting), setting, values) for setting, values in of_setting.items()]
            findings.append(Finding(f"{a} - {b}: {what}", bootstrap_sum(median, terms, 0.0), says, 0.0))
    return findings


def tenth(values: Floats) -> Floats:
    """The 10% quantile along the last axis."""
    return np.quantile(values, 0.1, axis=-1)


def ninetieth(values: Floats) -> Floats:
    """The 90% quantile along the last axis."""
    return np.quantile(values, 0.9, axis=-1)


def median(values: Floats) -> Floats:
    return np.median(values, axis=-1)
