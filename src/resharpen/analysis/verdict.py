"""Verdicts on gains, from the 95% interval and the margin, the smallest difference that matters:

no difference    the whole interval is within the margin, even if it excludes zero
helps, hurts     the interval excludes zero, after Holm's correction over all comparisons shown together
not trained ...  neither variant's best tenth is better than the best constant distribution
undecided        none of these; `more` models per setting would decide it in four cases of five, if the gain is real
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, isfinite
from typing import Literal

from resharpen.analysis.statistics import TAIL, Interval, holm
from resharpen.lazy import scipy
from resharpen.streams import GROUP

MARGIN = 0.02
"""In the unit of the metric."""
POWER = 0.8
Verdict = Literal["helps", "hurts", "no difference", "undecided", "not trained enough to tell"]


@dataclass(frozen=True)
class Gain:
    interval: Interval
    p: float
    """Of zero, after Holm's correction."""
    verdict: Verdict
    more: int | None
    """Models per setting to add for a decision; None if decided, or if there are too few models to estimate it."""
    tests: int = 1
    """The number of comparisons that are corrected for."""

    def said(self, margin: float) -> str:
        """In words, with the interval."""
        numbers = f"{self.interval.estimate:+.3f} ({self.interval.low:+.3f} to {self.interval.high:+.3f})"
        if self.verdict == "undecided":
            more = f"about {self.more:,} more models" if self.more else "too few models to tell"
            apart = self.interval.low > 0 or self.interval.high < 0  # else it would look like a contradiction
            after = f" after correction for {self.tests} comparisons" if apart else ""
            return f"undecided{after} ({more}), {numbers}"
        return f"{self.verdict}{f' within {margin:g}' if self.verdict == 'no difference' else ''}, {numbers}"


def judged(intervals: Sequence[Interval], models: Sequence[int], margin: float) -> list[Gain]:
    """Verdicts on gains that are shown together; `models` per setting are behind each."""
    gains = []
    for interval, p, n in zip(intervals, holm([interval.p for interval in intervals]), models, strict=True):
        verdict = judge(interval, p, margin)
        more = more_models(interval, margin, n, len(intervals)) if verdict == "undecided" else None
        gains.append(Gain(interval, p, verdict, more, len(intervals)))
    return gains


def untrained(gain: Gain) -> Gain:
    """The gain with the verdict for models that have learned nothing."""
    return replace(gain, verdict="not trained enough to tell", more=None)


def judge(interval: Interval, p: float, margin: float) -> Verdict:
    if -margin < interval.low and interval.high < margin:
        return "no difference"
    if p >= 2 * TAIL:
        return "undecided"
    return "helps" if interval.estimate > 0 else "hurts"


def more_models(interval: Interval, margin: float, models: int, tests: int) -> int | None:
    """Models to add per setting, in whole groups of sixteen, if the true gain is the estimate g.

    An interval of half-width h becomes h sqrt(models / n) with n models. To exclude zero with a probability of 0.8
    takes n = models (h/z)^2 ((z' + 0.84) / |g|)^2, with z = 1.96 and z' the same at the level 0.05 / tests. To be
    within the margin, if |g| is, takes the same with z instead of z' and margin - |g| instead of |g|, and near zero,
    where both ends matter, 1.28 instead of 0.84. The smaller of the two is returned.
    """
    reach = (interval.high - interval.low) / 2
    if not isfinite(reach):
        return None
    z, strict, power = -scipy.special.ndtri(TAIL), -scipy.special.ndtri(TAIL / tests), scipy.special.ndtri(POWER)
    size = abs(interval.estimate)
    differ = ((strict + power) / size) ** 2 if size else inf
    clear = scipy.special.ndtri((1 + POWER) / 2) if size < margin / 4 else power
    same = ((z + clear) / (margin - size)) ** 2 if size < margin else inf
    needed = models * (reach / z) ** 2 * min(differ, same)
    return max(1, ceil((needed - models) / GROUP)) * GROUP
