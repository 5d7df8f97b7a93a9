"""Warm-up over W steps, then linearly from 1 to the end multiplier, the paper's (Devlin et al., 2019).

t / W for t <= W, then 1 - (1 - e) (t - 1 - W) / max(1, T - 1 - W), with T steps and end multiplier e.
"""

from typing import Any

import numpy as np

from resharpen.optim.schedule import Floats, schedule, warmed_up


@schedule()
def linear(t: Floats, p: Any) -> Floats:
    return warmed_up(
        t, p, 1 - (1 - p.end_multiplier) * (t - 1 - p.warmup_steps) / np.maximum(1, p.steps - 1 - p.warmup_steps)
    )
