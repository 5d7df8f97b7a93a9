"""Claims and findings: a number, its interval, what is claimed of it, and the verdict.

The unit is a model at its best checkpoint; one that diverged before any counts as the worst. "Best results" are the 10%
quantile over models (90% where more is better), never the extreme. Each claim is a list of findings, a number against a
threshold with a 95% interval over draws (see `analysis/statistics.py`); p-values are Holm-corrected within the claim. A
claim holds if all its findings do, fails if one of them goes significantly the other way, and is undecided otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from resharpen.analysis.samples import Cells, median_of, paired_differences
from resharpen.analysis.statistics import UNKNOWN, Correlation, Interval, holm

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


def paired_findings(
    cells: Cells, pairs: Iterable[tuple[str, str]], what: str, says: Literal["<", ">"]
) -> list[Finding]:
    """For every pair of variants that can be compared: the paired median difference, the first minus the second."""
    return [
        Finding(f"{a} - {b}: {what}", median_of(of_setting), says, 0.0)
        for a, b in pairs
        if (of_setting := paired_differences(cells, a, b))
    ]
