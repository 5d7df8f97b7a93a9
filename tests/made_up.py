"""Made-up scores of Set Complement whose verdicts are known."""

import numpy as np
import polars as pl

PLACEMENTS = ("pre", "post", "peri", "peri-init")


def made_up_scores(level, bema=-0.005, draws=96, v=9):
    """Scores of so many draws: TVD around level(placement, s), BEMA moved by `bema`."""
    rng = np.random.default_rng(0)
    rows = []
    for placement in PLACEMENTS:
        for s in range(1, 9):
            for draw in range(draws):
                tvd = level(placement, s) * rng.uniform(0.8, 1.2)
                for weights, shift in (("train", 0.0), ("bema", bema)):
                    new = s < v - 1
                    rows.append((placement, s, draw, weights, tvd + shift, tvd + shift if new else None, new))
    columns = ["variant", "train_length", "draw", "weights", "score", "score_new", "has_new"]
    return pl.DataFrame(rows, schema=columns, orient="row")


def as_the_paper_says(placement, s):
    return {"pre": 0.3, "peri": 0.1 if s == 1 else 0.01}.get(placement, 0.4 if s < 3 else 0.01)
