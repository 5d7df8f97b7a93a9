"""Formatting of numbers and names."""

from __future__ import annotations

import math


def duration(seconds: float) -> str:
    """>>> [duration(s) for s in (5, 90, 7200, 500_000)]
    ['5 s', '1.5 min', '2.0 h', '5.8 days']
    """
    if math.isnan(seconds):
        return "?"
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= (2 * size if unit == "days" else size):
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
