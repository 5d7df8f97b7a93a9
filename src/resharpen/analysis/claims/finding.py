"""Claims and findings: a number with its interval, the claimed threshold, and the verdict.

The unit is a model at its best checkpoint; a model that diverged before the first checkpoint is ranked worst. "Best
results" are the 10% quantile over models (90% where more is better), never the extreme. Intervals are 95% over draws
(`analysis/statistics.py`); p-values are Holm-corrected within the claim. A claim holds if all its findings do, fails if
one is significantly on the other side, and is undecided otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from resharpen.analysis.samples import BEST, Cells, median_of, paired_differences
from resharpen.analysis.statistics import UNKNOWN, Correlation, Interval, Sample, holm, quantile_interval

Verdict = Literal["holds", "holds as far as tested", "does not hold", "undecided at this scale", "not tested"]
Sign = Literal["<", ">"]


@dataclass(frozen=True)
class Finding:
    """A number that is claimed to be below or above a threshold."""

    what: str
    interval: Interval
    says: Sign
    threshold: float
    p: float = 1.0
    """After Holm's correction."""

    @property
    def verdict(self) -> Verdict:
        if self.p >= 0.05:
            return "undecided at this scale"
        above = self.interval.estimate - self.threshold
        return "holds" if (above < 0 if self.says == "<" else above > 0) else "does not hold"


@dataclass(frozen=True)
class Claim:
    number: int
    text: str
    findings: tuple[Finding, ...]
    correlation: Correlation = UNKNOWN
    """Of the scores of draws that share minibatches: it determines the effective number of draws."""
    settings: str = ""
    """Prefix of the names of the settings that the claim is about."""
    lacks: tuple[str, ...] = ()
    """Settings and variants that a full test needs and the run does not have."""

    @property
    def verdict(self) -> Verdict:
        verdicts = {finding.verdict for finding in self.findings}
        for verdict in ("does not hold", "undecided at this scale"):
            if verdict in verdicts:
                return verdict
        return "not tested" if not verdicts else "holds as far as tested" if self.lacks else "holds"


def make_claim(number: int, text: str, findings: Sequence[Finding]) -> Claim:
    """A claim, with the p-values of its findings after Holm's correction."""
    adjusted = holm([finding.interval.p for finding in findings])
    return Claim(number, text, tuple(replace(f, p=p) for f, p in zip(findings, adjusted, strict=True)))


def best_finding(what: str, sample: Sample, says: Sign, threshold: float, q: float = BEST) -> Finding:
    """The best tenth of a sample; where more is better q is 1 - BEST."""
    return Finding(what, quantile_interval(sample, q, threshold), says, threshold)


def paired_findings(cells: Cells, pairs: Iterable[tuple[str, str]], what: str, says: Sign) -> list[Finding]:
    """The paired median difference, the first variant minus the second, for every pair that can be compared."""
    return [
        Finding(f"{a} - {b}: {what}", median_of(of_setting), says, 0.0)
        for a, b in pairs
        if (of_setting := paired_differences(cells, a, b))
    ]
