"""Claims and findings: a number, its interval, what is claimed of it, and the verdict.

The unit is a model at its best checkpoint; one that diverged before any counts as the worst. "Best results" are the 10%
quantile over models (90% where more is better), never the extreme. Each claim is a list of findings, a number against a
threshold with a 95% interval over draws (see `analysis/statistics.py`); p-values are Holm-corrected within the claim. A
claim holds if all its findings do, fails if one of them goes significantly the other way, and is undecided otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from resharpen.analysis.statistics import (
    UNKNOWN,
    Correlation,
    Interval,
    Sample,
    holm,
    intraclass_correlation,
    quantile_interval,
    sum_interval,
)
from resharpen.streams import GROUP

if TYPE_CHECKING:
    import polars as pl

Cells = dict[tuple[Any, ...], Sample]
"""What a cell is, such as (setting, variant) -> its values by draw."""
BEST, MEDIAN = 0.1, 0.5
"""Quantiles; the best of what should be high is 1 - BEST."""
Verdict = Literal["holds", "holds as far as tested", "does not hold", "undecided at this scale", "not tested"]


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
    correlation: Correlation = UNKNOWN
    """Of the scores of draws that share minibatches; it says how many independent draws the intervals count."""
    settings: str = ""
    """How the names of the settings begin that it is about."""
    lacks: tuple[str, ...] = ()
    """Settings and variants that it takes to test all of it, and that the run does not have."""

    @property
    def verdict(self) -> Verdict:
        verdicts = {finding.verdict for finding in self.findings}
        for verdict in ("does not hold", "undecided at this scale"):
            if verdict in verdicts:
                return verdict
        return "not tested" if not verdicts else "holds as far as tested" if self.lacks else "holds"


def make_claim(number: int, text: str, findings: Sequence[Finding]) -> Claim:
    """A claim with the p-values of its findings corrected for their number."""
    adjusted = holm([finding.interval.p for finding in findings])
    return Claim(number, text, tuple(replace(f, p=p) for f, p in zip(findings, adjusted, strict=True)))


def paired_only(rows: pl.DataFrame) -> pl.DataFrame:
    """The draws of each setting that every variant has: in an unfinished run some are ahead of others."""
    import polars as pl

    each = pl.struct("variant", "weights").n_unique()
    return rows.filter(each.over("setting", "draw") == each.over("setting"))


def correlation_within_groups(scores: pl.DataFrame, worst: float) -> Correlation:
    """How alike the scores of draws are that see the same minibatches; one number for a run."""
    settings = []
    for _, rows in paired_only(scores).group_by("setting", maintain_order=True):
        wide = rows.sort("draw").pivot(["variant", "weights"], index="draw", values="score").fill_null(worst)
        settings.append((wide.drop("draw").to_numpy(), wide["draw"].to_numpy() // GROUP))
    return intraclass_correlation(settings)


def by_draw(rows: pl.DataFrame, keys: Sequence[str], value: str, worst: float, worth: float) -> Cells:
    """keys -> values sorted by draw, so that cells with the same draws pair up; each draw worth so many independent
    ones."""
    ordered = rows.with_columns(value=rows[value].fill_null(worst)).sort("draw")
    return {
        key: Sample(part["value"].to_numpy(), worth * len(part))
        for key, part in ordered.group_by(*keys, maintain_order=True)
    }


def differences(cells: Cells, a: str, b: str) -> dict[str, Sample]:
    """Variant a minus variant b, draw by draw, in every setting that has both; cells are (setting, variant)."""
    return {
        setting: cells[setting, a] - cells[setting, b]
        for setting, placement in sorted(cells)
        if placement == a and (setting, b) in cells
    }


def compare(cells: Cells, pairs: Iterable[tuple[str, str]], what: str, says: Literal["<", ">"]) -> list[Finding]:
    """For every pair of variants that can be compared: the paired median difference, the first minus the second."""
    return [
        Finding(f"{a} - {b}: {what}", median_of(of_setting), says, 0.0)
        for a, b in pairs
        if (of_setting := differences(cells, a, b))
    ]


def median_of(of_setting: Mapping[str, Sample]) -> Interval:
    """The median of one setting's sample, with its interval; of several settings the mean of their medians.

    Draw i is another draw in each of them, so there is nothing to pair across settings, and all count alike however
    many draws each has.
    """
    if len(of_setting) == 1:
        (sample,) = of_setting.values()
        return quantile_interval(sample, MEDIAN, 0.0)
    terms = [(1 / len(of_setting), setting, sample) for setting, sample in of_setting.items()]
    return sum_interval(terms, MEDIAN, 0.0)
