"""How long an experiment takes on this machine, from a short calibration, and how much disk it needs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from resharpen.engines.base import GROUP
from resharpen.engines.choose import make_engine
from resharpen.experiments.machine import cores
from resharpen.experiments.spec import Experiment, Shard

CALIBRATION_SECONDS = 0.05
VALIDATION_SHARE = 1.1
"""Checkpoints and reports cost about a tenth on top of training."""
LENGTHS = 10
"""Lengths in a report, about."""
BYTES_PER_VALUE = 4.5
"""Kept weights are stored as they are; tables compress well."""


TOGETHER = {"minimal": GROUP}
"""Models that train side by side at the cost of one, by family; else one costs as much as the next."""


@dataclass(frozen=True)
class Pace:
    """Time of a training step of up to so many models, with minibatches of so many sequences."""

    seconds: float
    models: int
    batch: int

    def step(self, models: int, batch: int) -> float:
        return self.seconds * -(-models // self.models) * batch / self.batch


@dataclass(frozen=True)
class Estimate:
    shards: int
    models: int
    seconds: float
    """With all workers busy."""
    bytes: float


def seconds_per_step(experiment: Experiment, shard: Shard) -> float:
    """Time of one training step of a shard."""
    engine = make_engine(experiment.engine, experiment.problem(shard), experiment.ensemble(shard))
    engine.advance(1)
    steps, n, spent, best = 0, 1, 0.0, np.inf
    while spent < CALIBRATION_SECONDS and steps < experiment.steps - 1:
        n = min(n, experiment.steps - 1 - steps)
        started = time.perf_counter()
        engine.advance(n)
        seconds = time.perf_counter() - started
        best = min(best, seconds / n)
        steps, spent, n = steps + n, spent + seconds, n * 2
    return best


def calibrate(experiment: Experiment) -> dict[str, Pace]:
    """The pace by setting: the mean of the first placement and the last, the one with most norms."""
    ends = {list(experiment.placements)[i] for i in (0, -1)}
    pace = {}
    for setting in experiment.settings:
        models = TOGETHER.get(setting.model.kind, 1)
        shards = [Shard(setting, placement, 0, min(models, experiment.models)) for placement in sorted(ends)]
        seconds = np.mean([seconds_per_step(experiment, shard) for shard in shards])
        pace[setting.name] = Pace(float(seconds), models, experiment.batch)
    return pace


def estimate(experiment: Experiment, pace: Mapping[str, Pace], workers: int | None = None) -> Estimate:
    """`pace` is that of each setting, as `calibrate` gives it."""
    shards = experiment.shards()
    busy = sum(pace[shard.setting.name].step(shard.count, experiment.batch) for shard in shards)
    values = 0
    for shard in shards:
        model = shard.setting.model
        shapes = {**model.matrices(), **model.biases(), **model.gains(experiment.placements[shard.placement])}
        weights = 6 * sum(int(np.prod(shape)) for shape in shapes.values())
        curves, lengths = 2 * experiment.checkpoints, 6 * LENGTHS
        values += shard.count * (weights + 2 * curves + 2 * lengths)
    seconds = busy * experiment.steps * VALIDATION_SHARE / min(workers or cores(), len(shards))
    return Estimate(len(shards), sum(s.count for s in shards), seconds, values * BYTES_PER_VALUE)


def describe(experiment: Experiment, workers: int | None = None) -> str:
    """What a run would do, for `--dry-run`."""
    found = estimate(experiment, calibrate(experiment), workers)
    settings = ", ".join(setting.name for setting in experiment.settings)
    return (
        f"{experiment.name}: {found.models:,} models x {experiment.steps:,} steps, {experiment.engine} engine\n"
        f"  settings    {settings}\n"
        f"  placements  {', '.join(experiment.placements)}\n"
        f"  shards      {found.shards}\n"
        f"  time        about {found.seconds / 3600:.2g} hours on {workers or cores()} workers\n"
        f"  disk        about {found.bytes / 2**20:,.0f} MiB\n"
        "Nothing was trained or written."
    )
