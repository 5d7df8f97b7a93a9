"""Which verdicts depend on the reading: every claim under other quantiles, checkpoints and thresholds."""

from dataclasses import dataclass

from resharpen.analysis.claims import claims
from resharpen.analysis.claims.finding import Claim, Finding, Verdict
from resharpen.analysis.claims.reading import DEFAULT, Reading
from resharpen.experiments.keeping.opening import RunOrReference

BUDGET = 48
READINGS = {
    "default": DEFAULT,
    f"best of {BUDGET}": Reading(best_of=BUDGET),
    **{f"{q:.0%}": Reading(quantile=q) for q in (0.02, 0.05)},
    "median": Reading(quantile=0.5),
    **{name: Reading(selection=name) for name in ("last", "best-trained")},
    **{f"t = {x:g}": Reading(threshold=x) for x in (0.03, 0.1)},
}
"""Each differs from the default (10% quantile, best checkpoint, threshold 0.05) in one respect."""
LEGEND = (
    "Default: the 10% quantile over models, the best checkpoint, threshold t = 0.05. Every other column changes one of "
    f"these: the expected best of {BUDGET} models, or the 2%, 5% or 50% quantile; the last checkpoint, or the best one "
    "on trained lengths; t = 0.03 or 0.1. Paired medians have no quantile to replace. With fewer than 49 models "
    "per cell the 2% quantile is the minimum, with fewer than 19 the 5% quantile. 16/20 (19): 16 of 20 findings hold, "
    "and 19 estimates are on the claimed side, significant or not."
)


@dataclass(frozen=True)
class Sensitivity:
    """One claim under every reading."""

    by_reading: dict[str, Claim]

    @property
    def claim(self) -> Claim:
        return self.by_reading["default"]

    def verdicts(self) -> dict[Verdict, list[str]]:
        """Verdict -> the readings that give it, except readings that need more models."""
        found: dict[Verdict, list[str]] = {}
        for name, claim in self.by_reading.items():
            if all(finding.has_estimate for finding in claim.findings):
                found.setdefault(claim.verdict, []).append(name)
        return found

    def depends(self) -> str:
        """Which readings give which verdict, in one sentence."""
        claim, verdicts = f"Claim {self.claim.number} ({self.claim.text})", self.verdicts()
        if len(verdicts) == 1:
            return f"{claim} does not depend on the reading: {self.claim.verdict}."
        each = "; ".join(f"{verdict} ({', '.join(names)})" for verdict, names in verdicts.items())
        return f"{claim} depends on the reading: {each}."

    def changing(self) -> list[tuple[Finding, dict[str, Finding]]]:
        """Findings whose estimate changes sides: under the default reading, and under the readings that disagree."""
        findings = [claim.findings for claim in self.by_reading.values()]
        each = [dict(zip(self.by_reading, of, strict=True)) for of in zip(*findings, strict=True)]
        found = []
        for of in each:
            default = of["default"]
            other = {n: f for n, f in of.items() if f.has_estimate and f.as_claimed != default.as_claimed}
            found += [(default, other)] if other else []
        return found


def sensitivity(run: RunOrReference) -> list[Sensitivity]:
    """The claims of a run that have findings, each under every reading."""
    found = {name: claims(run, reading) for name, reading in READINGS.items()}
    each = [dict(zip(found, of, strict=True)) for of in zip(*found.values(), strict=True)]
    return [Sensitivity(of) for of in each if of["default"].findings]


def cell(claim: Claim) -> str:
    """Table cell of a claim under one reading."""
    if not all(finding.has_estimate for finding in claim.findings):
        return "too few models"
    holds = sum(finding.verdict == "holds" for finding in claim.findings)
    side = sum(finding.as_claimed for finding in claim.findings)
    return f"{claim.verdict.removesuffix(' at this scale')}, {holds}/{len(claim.findings)} ({side})"


def estimates(findings: dict[str, Finding]) -> str:
    """Estimates of a finding by reading."""
    return ", ".join(f"{name} {finding.interval.estimate:.3f}" for name, finding in findings.items())
