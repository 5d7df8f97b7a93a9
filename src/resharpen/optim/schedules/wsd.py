"""Warm-up over W steps, then 1, then linearly to the end multiplier over the last fifth (Hu et al., 2024).

Decay begins after step max(W, T - 1 - floor(T / 5)).
"""

from typing import Any

import numpy as np

from resharpen.optim.schedule import Floats, progress, schedule, warmed_up


@schedule()
def wsd(t: Floats, p: Any) -> Floats:
    begin = np.maximum(p.warmup_steps, p.steps - 1 - p.steps // 5)
    return warmed_up(t, p, np.where(t <= begin, 1.0, 1 - (1 - p.end_multiplier) * progress(t, p, begin)))
