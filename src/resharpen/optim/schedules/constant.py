"""Warm-up over W steps, then 1: no decay."""

from typing import Any

from resharpen.optim.schedule import Floats, schedule, warmed_up


@schedule()
def constant(t: Floats, p: Any) -> Floats:
    return warmed_up(t, p, 1.0)
