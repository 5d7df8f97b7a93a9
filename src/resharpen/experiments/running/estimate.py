"""Estimated time and disk space of an experiment on this machine, from a short calibration."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from resharpen import own
from resharpen.engines.choose import make_engine
from resharpen.experiments.keeping.machine import cores
from resharpen.experiments.keeping.store import code_lines
from resharpen.experiments.running.runner import with_engine
from resharpen.experiments.specs.counts import parameter_counts, side_by_side, unlike
from resharpen.experiments.specs.shelf import SCALES, SHELF, take
from resharpen.experiments.specs.spec import Experiment, Shard
from resharpen.experiments.specs.variant import Variant
from resharpen.streams import GROUP

CALIBRATION_SECONDS = 0.05
VALIDATION_SHARE = 1.1
"""Checkpoints and reports take about a tenth of the training time."""
LENGTHS = 10
"""Approximate number of lengths in a report."""
BYTES_PER_VALUE = 4.5
"""Kept weights are stored uncompressed; tables compress well."""
TOGETHER = {"minimal": GROUP}
"""Family -> models that train side by side at the cost of one; 1 for the others."""


@dataclass(frozen=True)
class Pace:
    """Seconds per training step of up to so many models, with minibatches of so many sequences."""

    seconds: float
    models: int
    batch: int

    def step(self, models: int, batch: int) -> float:
        return self.seconds * -(-models // self.models) * batch / self.batch


Paces = Mapping[tuple[str, str], Pace]
"""By name of setting and variant."""


@dataclass(frozen=True)
class Estimate:
    shards: int
    models: int
    seconds: float
    """With all workers busy."""
    bytes: float


def seconds_per_step(experiment: Experiment, shard: Shard) -> float:
    """Seconds per training step of a shard."""
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


def calibrate(experiment: Experiment) -> Paces:
    """Of variants that differ in the placement only, the first and the last are timed; all get the mean."""
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
    assert experiment.batch is not None
    busy, values, sizes = 0.0, 0, experiment.shard_sizes()
    rows = 2 * 2 * experiment.checkpoints + 2 * 6 * LENGTHS
    for shard in experiment.cells():
        of_this = pace[shard.setting.name, shard.variant]
        busy += sum(n * of_this.step(models, experiment.batch) for models, n in sizes.items())
        values += experiment.models * (6 * experiment.parameter_count(shard.setting, shard.variant) + rows)
    kinds = len(experiment.settings) * len(experiment.variants)
    shards = kinds * sum(sizes.values())
    seconds = busy * experiment.steps * VALIDATION_SHARE / min(workers or cores(), shards)
    return Estimate(shards, kinds * experiment.models, seconds, values * BYTES_PER_VALUE)


def describe(experiment: Experiment, workers: int | None = None) -> str:
    """What a run would do, as text for `--dry-run`."""
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
        f"{_parameters(experiment)}"
        "Nothing was trained or written."
    )


def _parameters(experiment: Experiment) -> str:
    """How many parameters models have, and of the user's own what each of them is."""
    counts, baseline = parameter_counts(experiment), experiment.baseline or next(iter(experiment.variants))
    lines = [f"  parameters  {line}" for line in side_by_side(counts)]
    lines += [f"  warning     {line}" for line in unlike(counts, baseline)]
    for name, variant in experiment.variants.items():
        model = experiment.settings[0].model_of(variant)
        if own.is_own(model.kind):
            rows = [("", "shape", "drawn", "decays", "inner")]
            rows += [
                (key, " x ".join(map(str, p.shape)), p.drawn, "yes" if p.decays else "no", "yes" if p.inner else "no")
                for key, p in model.parameters(variant.parts(model)).items()
            ]
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            table = ["  ".join(f"{x:{n}}" for x, n in zip(row, widths, strict=True)).rstrip() for row in rows]
            lines += [f"  parameters of {name}, {experiment.settings[0].name}", *(f"    {line}" for line in table)]
    return "".join(f"{line}\n" for line in lines)


def time_figures() -> tuple[dict[tuple[str, str], float], str]:
    """(figure, scale) -> estimated seconds on this machine, and the engine that would train figure 1."""
    engine = str(next(iter(with_engine(take("fig1", "paper")).variants.values())).engine)
    asked, seconds = "torch" if engine == "torch" else "auto", {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `run` says which variants use torch, and why
        for name in SHELF:
            experiments = {scale: with_engine(take(name, scale).with_changes(engine=asked)) for scale in SCALES}
            pace = calibrate(experiments["laptop"])
            seconds |= {(name, scale): estimate(experiment, pace).seconds for scale, experiment in experiments.items()}
    return seconds, engine
