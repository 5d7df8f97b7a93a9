"""Claims and findings: a number with its interval, the claimed threshold, and the verdict.

The unit is a model at its best checkpoint; a model that diverged before the first one is ranked worst. "Best results"
are the 10% quantile over models, or another `Reading`. p-values are Holm-corrected within the claim, which holds if all
its findings do, fails if one is significantly on the other side, and is undecided otherwise.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import isfinite, isnan
from typing import Literal

from resharpen.analysis.samples import Cells, median_of, paired_differences
from resharpen.analysis.statistics import UNKNOWN, Correlation, Interval, holm

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
    share: bool = False
    """Whether it is a share, between 0 and 1."""

    @property
    def bounded(self) -> bool:
        """Whether the interval excludes any value: not if it is unbounded at both ends, or 0 to 1 for a share."""
        low, high = self.interval.low, self.interval.high
        return (low > 0 or high < 1) if self.share else isfinite(low) or isfinite(high)

    @property
    def has_estimate(self) -> bool:
        """False if there are fewer models than the expected best of k needs."""
        return not isnan(self.interval.estimate)

    @property
    def as_claimed(self) -> bool:
        """Whether the estimate is on the claimed side, significant or not; False if there is no estimate."""
        above = self.interval.estimate - self.threshold
        return above < 0 if self.says == "<" else above > 0

    @property
    def verdict(self) -> Verdict:
        if self.p >= 0.05:
            return "undecided at this scale"
        return "holds" if self.as_claimed else "does not hold"


@dataclass(frozen=True)
class Claim:
    number: int
    text: str
    findings: tuple[Finding, ...]
    correlation: Correlation = UNKNOWN
    """Correlation of the scores of draws that share minibatches: it determines the effective number of draws."""
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

    @property
    def counts(self) -> str:
        """`17 of 20 findings hold; open: peri-init, s = 4, 6, 7`"""
        if not self.findings:
            return "no data to test it"
        named = {"does not hold": "refuted", "undecided at this scale": "open"}
        lists = {word: [f.what for f in self.findings if f.verdict == verdict] for verdict, word in named.items()}
        held = sum(finding.verdict == "holds" for finding in self.findings)
        said = [f"{held} of {len(self.findings)} findings hold"]
        return "; ".join(said + [f"{word}: {'; '.join(_merged(names))}" for word, names in lists.items() if names])


def _merged(texts: Iterable[str]) -> list[str]:
    """Subjects of findings; those that differ only in a number are merged.

    >>> _merged(["pre, s = 5: best TVD", "pre, s = 6: best TVD", "peri - pre: median", "peri - pre: gain"])
    ['pre, s = 5, 6', 'peri - pre']
    """
    about: dict[str, list[str]] = {}
    for text in texts:
        head = text.split(":")[0]
        parts = re.fullmatch(r"(.* )(\d+)", head)
        name, number = (parts[1], parts[2]) if parts else (head, "")
        numbers = about.setdefault(name, [])
        numbers += [number] if number and number not in numbers else []
    return [name + ", ".join(sorted(numbers, key=int)) for name, numbers in about.items()]


def make_claim(number: int, text: str, findings: Sequence[Finding]) -> Claim:
    """A claim, with the p-values of its findings after Holm's correction."""
    adjusted = holm([finding.interval.p for finding in findings])
    return Claim(number, text, tuple(replace(f, p=p) for f, p in zip(findings, adjusted, strict=True)))


def paired_findings(cells: Cells, pairs: Iterable[tuple[str, str]], what: str, says: Sign) -> list[Finding]:
    """The paired median difference, the first variant minus the second, for every pair that can be compared."""
    return [
        Finding(f"{a} - {b}: {what}", median_of(of_setting), says, 0.0)
        for a, b in pairs
        if (of_setting := paired_differences(cells, a, b))
    ]
