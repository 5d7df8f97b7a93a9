"""How long an experiment takes on this machine, from a short calibration, and how much disk it needs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from resharpen.engines.choose import make_engine
from resharpen.experiments.machine import cores
from resharpen.experiments.spec import Experiment, Setting, Shard

CALIBRATION_SECONDS = 0.05
VALIDATION_SHARE = 1.1
"""Checkpoints and reports cost about a tenth on top of training."""
LENGTHS = 10
"""Lengths in a report, about."""
BYTES_PER_VALUE = 4.5
"""Kept weights are stored as they are; tables compress well."""


@dataclass(frozen=True)
class Estimate:
    shards: int
    models: int
    seconds: float
    """With all workers busy."""
    bytes: float


def seconds_per_step(experiment: Experiment, setting: Setting) -> float:
    """Time of one training step of a group of models, measured on its last placement (the one with most norms)."""
    shard = Shard(setting, list(experiment.placements)[-1], 0, min(16, experiment.models))
    engine = make_engine(experiment.engine, experiment.problem(shard), experiment.ensemble(shard))
    engine.advance(1)
    steps, n, best = 0, 1, np.inf
    deadline = time.perf_counter() + CALIBRATION_SECONDS
    while time.perf_counter() < deadline and steps < experiment.steps - 1:
        n = min(n, experiment.steps - 1 - steps)
        started = time.perf_counter()
        engine.advance(n)
        best = min(best, (time.perf_counter() - started) / n)
        steps, n = steps + n, n * 2
    return best


def calibrate(experiment: Experiment) -> dict[str, float]:
    return {setting.name: seconds_per_step(experiment, setting) for setting in experiment.settings}


def estimate(experiment: Experiment, pace: Mapping[str, float], workers: int | None = None) -> Estimate:
    """`pace` is the time of a step by setting, as `calibrate` gives it."""
    shards = experiment.shards()
    busy = sum(pace[shard.setting.name] * experiment.steps for shard in shards) * VALIDATION_SHARE
    values = 0
    for shard in shards:
        model = shard.setting.model
        shapes = {**model.matrices(), **model.biases(), **model.gains(experiment.placements[shard.placement])}
        weights = 6 * sum(int(np.prod(shape)) for shape in shapes.values())
        curves, lengths = 2 * experiment.checkpoints, 6 * LENGTHS
        values += shard.count * (weights + 2 * curves + 2 * lengths)
    seconds = busy / min(workers or cores(), len(shards))
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
