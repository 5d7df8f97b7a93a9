"""How long an experiment takes on this machine, from a short calibration, and how much disk it needs."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from resharpen.engines.choose import make_engine
from resharpen.experiments.keeping.machine import cores
from resharpen.experiments.keeping.store import code_lines
from resharpen.experiments.running.runner import with_engine
from resharpen.experiments.specs.shelf import SCALES, SHELF, take
from resharpen.experiments.specs.spec import Experiment, Shard
from resharpen.experiments.specs.variant import Variant
from resharpen.streams import GROUP

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
    engine = make_engine(
        str(experiment.variants[shard.variant].engine), experiment.problem(shard), experiment.ensemble(shard)
    )
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


Paces = Mapping[tuple[str, str], Pace]
"""Of every setting and variant, by name."""


def calibrate(experiment: Experiment) -> Paces:
    """Variants that differ in the placement alone have the pace of the first and the last of them."""
    alike: dict[Variant, list[str]] = {}
    for name, variant in experiment.variants.items():
        alike.setdefault(replace(variant, placement=None), []).append(name)
    pace = {}
    for setting in experiment.settings:
        for variant, names in alike.items():
            models = GROUP if variant.engine == "torch" else TOGETHER.get(setting.model_of(variant).kind, 1)
            ends = sorted({names[0], names[-1]})
            shards = [Shard(setting, name, 0, min(models, experiment.models)) for name in ends]
            seconds = float(np.mean([seconds_per_step(experiment, shard) for shard in shards]))
            assert experiment.batch is not None
            pace |= {(setting.name, name): Pace(seconds, models, experiment.batch) for name in names}
    return pace


def estimate(experiment: Experiment, pace: Paces, workers: int | None = None) -> Estimate:
    """`pace` is that of each setting and variant, as `calibrate` gives it."""
    assert experiment.batch is not None
    busy, values, sizes = 0.0, 0, experiment.shard_sizes()
    rows = 2 * 2 * experiment.checkpoints + 2 * 6 * LENGTHS
    for shard in experiment.cells():
        of_this = pace[shard.setting.name, shard.variant]
        busy += sum(n * of_this.step(models, experiment.batch) for models, n in sizes.items())
        values += experiment.models * (6 * _weights(experiment, shard) + rows)
    kinds = len(experiment.settings) * len(experiment.variants)
    shards = kinds * sum(sizes.values())
    seconds = busy * experiment.steps * VALIDATION_SHARE / min(workers or cores(), shards)
    return Estimate(shards, kinds * experiment.models, seconds, values * BYTES_PER_VALUE)


def _weights(experiment: Experiment, shard: Shard) -> int:
    problem = experiment.problem(shard)
    return sum(math.prod(map(int, p.shape)) for p in problem.model.parameters(problem.parts).values())


def describe(experiment: Experiment, workers: int | None = None) -> str:
    """What a run would do, for `--dry-run`."""
    found = estimate(experiment, calibrate(experiment), workers)
    settings = ", ".join(setting.name for setting in experiment.settings)
    return (
        f"{experiment.name}: {found.models:,} models x {experiment.steps:,} steps\n"
        f"  settings    {settings}\n"
        f"  variants    {', '.join(f'{name} ({v.engine})' for name, v in experiment.variants.items())}\n"
        + "".join(f"  your code   {line}\n" for line in code_lines(experiment))
        + f"  shards      {found.shards:,}\n"
        f"  time        about {found.seconds / 3600:.2g} hours on {workers or cores()} workers\n"
        f"  disk        about {found.bytes / 2**20:,.0f} MiB\n"
        "Nothing was trained or written."
    )


def time_figures() -> tuple[dict[tuple[str, str], float], str]:
    """Seconds that each figure of the shelf takes at each scale on this machine, and the engine that would train it."""
    engine = str(next(iter(with_engine(take("fig1", "paper")).variants.values())).engine)
    asked, seconds = "torch" if engine == "torch" else "auto", {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what runs on torch, and why, is said by `run`
        for name in SHELF:
            experiments = {scale: with_engine(take(name, scale).with_changes(engine=asked)) for scale in SCALES}
            pace = calibrate(experiments["laptop"])
            seconds |= {(name, scale): estimate(experiment, pace).seconds for scale, experiment in experiments.items()}
    return seconds, engine
