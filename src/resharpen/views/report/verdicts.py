"""Claims and comparisons as plain data for the page."""

from __future__ import annotations

from dataclasses import asdict
from math import isnan
from typing import Any

from resharpen.analysis.claims import claims
from resharpen.analysis.claims.finding import Claim
from resharpen.analysis.compare import EVERY, compare
from resharpen.analysis.verdict import Gain
from resharpen.errors import UserError
from resharpen.experiments.keeping.opening import RunOrReference


def claims_data(run: RunOrReference) -> dict[str, Any]:
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
        "lacks": claim.lacks,
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


def comparison_data(run: RunOrReference) -> dict[str, Any] | None:
    """All variants against the baseline; None where there is nothing to pair."""
    try:
        found = compare(run)
    except UserError:
        return None
    effects = [
        {**asdict(effect), "median": _gain(effect.median), "best": _gain(effect.best)} for effect in found.effects
    ]
    return {
        "baseline": found.baseline,
        "every": EVERY,
        "label": found.metric.label,
        "margin": found.margin,
        "sentences": found.sentences(),
        "headlines": [found.effects.index(effect) for effect in found.headlines()],
        "effects": effects,
        "bestOf": [asdict(curve) for curve in found.best_of],
        "importance": [asdict(importance) for importance in found.importance],
    }


def _gain(gain: Gain) -> dict[str, Any]:
    return {**asdict(gain.interval), "p": gain.p, "verdict": gain.verdict, "more": gain.more}
