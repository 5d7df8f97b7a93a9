"""Claims and comparisons as plain data for the page."""

from __future__ import annotations

from dataclasses import asdict
from math import isnan
from typing import Any

from resharpen.analysis.claims import Claim, claims
from resharpen.experiments.keeping.store import Run


def claims_data(run: Run) -> dict[str, Any]:
    found = claims(run)
    if not found:
        return {"claims": [], "alike": None}
    correlation = found[0].correlation.estimate
    return {"claims": [_claim(claim) for claim in found], "alike": None if isnan(correlation) else correlation}


def _claim(claim: Claim) -> dict[str, Any]:
    return {
        "number": claim.number,
        "text": claim.text,
        "verdict": claim.verdict,
        "findings": [
            {
                "what": finding.what,
                **asdict(finding.interval),
                "says": finding.says,
                "threshold": finding.threshold,
                "p": finding.p,
                "verdict": finding.verdict,
            }
            for finding in claim.findings
        ],
    }
