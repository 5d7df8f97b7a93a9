"""Warm-up over W steps, then half a cosine from 1 to the end multiplier (Loshchilov and Hutter, 2017).

t / W for t <= W, then e + (1 - e) (1 + cos(pi (t - 1 - W) / max(1, T - 1 - W))) / 2.
"""

from typing import Any

import numpy as np

from resharpen.optim.schedule import Floats, progress, schedule, warmed_up


@schedule()
def cosine(t: Floats, p: Any) -> Floats:
    e = p.end_multiplier
    return warmed_up(t, p, e + (1 - e) * (1 + np.cos(np.pi * progress(t, p, p.warmup_steps))) / 2)
