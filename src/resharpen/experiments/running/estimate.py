"""Estimated time and disk space of an experiment on this machine, from a short calibration."""

import contextlib
import json
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from resharpen import own
from resharpen.engines.base import weights_of
from resharpen.engines.choose import describe_compiler, make_engine, measure_all
from resharpen.engines.native.build import cache_directory
from resharpen.errors import Failed
from resharpen.experiments.keeping.files import sha256, write_json
from resharpen.experiments.keeping.machine import cores, cpu, versions
from resharpen.experiments.keeping.store import code_lines
from resharpen.experiments.running.runner import check_memory, with_engine
from resharpen.experiments.specs.counts import parameter_counts, side_by_side, unlike
from resharpen.experiments.specs.schema import SLOTS
from resharpen.experiments.specs.shelf import SCALES, SHELF, take
from resharpen.experiments.specs.spec import Experiment, Shard
from resharpen.experiments.specs.variant import Variant
from resharpen.state import WEIGHTS
from resharpen.streams import GROUP
from resharpen.tasks import Task
from resharpen.tasks.blocks import by_length_without
from resharpen.words import duration

CALIBRATION_SECONDS = 0.05
TIMES = "times.json"
"""File in the cache directory with the estimated times of all figures."""
SHARD_SECONDS = 0.2
"""Seconds to start a shard and to write its results."""
LENGTHS = 10
"""Approximate number of lengths in a report."""
TOGETHER = {"minimal": GROUP}
"""Model family -> native models that train in parallel at the cost of one; 1 for the others."""
BYTES_PER_VALUE = 4.5
"""Bytes per value: weights are stored uncompressed, tables compress well."""


@dataclass(frozen=True)
class Pace:
    """Measured seconds for up to `models` models: per training step with minibatches of a given size; per checkpoint
    and per report, for each kind of weights, on validation sets of a given size."""

    seconds: float
    models: int
    batch: int
    checkpoint: float = 0.0
    """Seconds to score one kind of weights on the selection set, divided by the size of the set."""
    report: float = 0.0
    """The same for all reported metrics."""

    def of(self, models: int) -> "Pace":
        """The pace for fewer models, if all models take equally long."""
        share = models / self.models
        return Pace(self.seconds * share, models, self.batch, self.checkpoint * share, self.report * share)

    def shard(self, experiment: Experiment, task: Task, models: int) -> float:
        """Seconds to train, score and report a shard."""
        assert experiment.batch is not None
        step = self.seconds * experiment.batch / self.batch
        checkpoints = len(WEIGHTS) * len(experiment.checkpoint_steps()) * self.checkpoint
        # reports are at most so many: kept checkpoints of one kind are often those of another
        scored = checkpoints * size_of(task, "selection") + len(SLOTS) * self.report * size_of(task, "report")
        return -(-models // self.models) * (experiment.steps * step + scored) + SHARD_SECONDS


Paces = Mapping[tuple[str, str], Pace]
"""By name of setting and variant."""


@dataclass(frozen=True)
class Estimate:
    shards: int
    models: int
    seconds: float
    """With all workers busy."""
    bytes: float


@cache
def size_of(task: Task, use: str) -> float:
    """Size of a validation set: the lengths of all scored prefixes, summed."""
    return float(task.validation(0, use).length_P.sum())


def measure_pace(experiment: Experiment, shard: Shard, scored: bool = True) -> Pace:
    """Train a few steps of a shard, and score it."""
    problem = experiment.problem(shard)
    engine = make_engine(str(experiment.variants[shard.variant].engine), problem, experiment.ensemble(shard))
    engine.advance(1)
    steps, n, spent, best = 0, 1, 0.0, np.inf
    while spent < CALIBRATION_SECONDS and steps < experiment.steps - 1:
        n = min(n, experiment.steps - 1 - steps)
        started = time.perf_counter()
        engine.advance(n)
        seconds = time.perf_counter() - started
        best = min(best, seconds / n)
        steps, spent, n = steps + n, spent + seconds, n * 2
    if not scored:
        return Pace(best, shard.count, problem.batch)
    make_engine("torch", problem, engine.ensemble)  # loads torch, which a report may need: a cost per process
    task, weights = problem.task, weights_of(engine.dump(), engine.ensemble, "train")
    selection, size = task.validation(experiment.seed, "selection"), size_of(task, "selection")

    def checkpoint() -> None:
        task.by_length(engine.measure(weights, selection), selection)

    def report() -> None:
        measured = measure_all(engine, weights, selection)
        task.by_length(measured, selection)
        by_length_without(task, measured, selection)

    return Pace(best, shard.count, problem.batch, _seconds(checkpoint) / size, _seconds(report) / size)


def _seconds(what: Callable[[], None]) -> float:
    """Seconds of the faster of two calls, since the first may load code; a slow call is not repeated."""
    best = np.inf
    for _ in range(2):
        started = time.perf_counter()
        what()
        best = min(best, time.perf_counter() - started)
        if best > 10 * CALIBRATION_SECONDS:
            break
    return best


def calibrate(experiment: Experiment) -> Paces:
    """Among variants that differ only in the placement, the first and the last are timed, and all get the mean. On the
    native engine this also applies to attention and positions, which cost about the same there."""
    alike: dict[Variant, list[str]] = {}
    for name, variant in experiment.variants.items():
        in_kernels = {"attention": "softmax", "positions": None} if variant.engine == "native" else {}
        alike.setdefault(replace(variant, placement=None, **in_kernels), []).append(name)
    pace, scoring = {}, {}
    for setting in experiment.settings:
        for variant, names in alike.items():
            ends = sorted({names[0], names[-1]})
            # a whole group, because its models share the cost of sampling minibatches
            shards = [Shard(setting, name, 0, min(GROUP, experiment.models)) for name in ends]
            # the cost of scoring depends neither on the training length nor, noticeably, on the placement
            key = (setting.task, setting.model_of(variant), variant)
            measured = [measure_pace(experiment, s, scored=s is shards[0] and key not in scoring) for s in shards]
            of_key = scoring.setdefault(key, measured[0])
            mean = replace(of_key, seconds=float(np.mean([p.seconds for p in measured])))
            if variant.engine == "native":
                mean = mean.of(min(TOGETHER.get(setting.model_of(variant).kind, 1), mean.models))
            pace |= {(setting.name, name): mean for name in names}
    return pace


def estimate(experiment: Experiment, pace: Paces, workers: int | None = None) -> Estimate:
    busy, values, sizes = 0.0, 0, experiment.shard_sizes()
    rows = 2 * 2 * experiment.checkpoints + 2 * 6 * LENGTHS
    for cell in experiment.cells():
        of_this = pace[cell.setting.name, cell.variant]
        busy += sum(n * of_this.shard(experiment, cell.setting.task, models) for models, n in sizes.items())
        values += experiment.models * (6 * experiment.parameter_count(cell.setting, cell.variant) + rows)
    kinds = len(experiment.settings) * len(experiment.variants)
    shards = kinds * sum(sizes.values())
    seconds = busy / min(workers or cores(), shards)
    return Estimate(shards, kinds * experiment.models, seconds, values * BYTES_PER_VALUE)


def describe(experiment: Experiment, workers: int | None = None) -> str:
    """What a run would do, as text for `--dry-run`."""
    check_memory(experiment)
    found = estimate(experiment, calibrate(experiment), workers)
    settings = ", ".join(setting.name for setting in experiment.settings)
    return (
        f"{experiment.name}: {found.models:,} models x {experiment.steps:,} steps\n"
        f"  settings    {settings}\n"
        f"  variants    {', '.join(f'{name} ({v.engine})' for name, v in experiment.variants.items())}\n"
        + "".join(f"  your code   {line}\n" for line in code_lines(experiment))
        + f"  shards      {found.shards:,}\n"
        f"  time        about {duration(found.seconds)} on {workers or cores()} workers\n"
        f"  disk        about {found.bytes / 2**20:,.0f} MiB\n"
        f"{_parameters(experiment)}"
        "Nothing was trained or written."
    )


def _parameters(experiment: Experiment) -> str:
    """The number of parameters per variant, and each parameter of the user's models."""
    counts, baseline = parameter_counts(experiment), experiment.baseline or next(iter(experiment.variants))
    lines = [f"  parameters  {line}" for line in side_by_side(counts)]
    lines += [f"  warning     {line}" for line in unlike(counts, baseline)]
    for name, variant in experiment.variants.items():
        model = experiment.settings[0].model_of(variant)
        if own.is_own(model.kind):
            rows = [("", "shape", "drawn", "decays", "inner")]
            rows += [
                (key, " x ".join(map(str, p.shape)), p.drawn, "yes" if p.decays else "no", "yes" if p.inner else "no")
                for key, p in model.parameters(experiment.settings[0].parts_of(variant)).items()
            ]
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            table = ["  ".join(f"{x:{n}}" for x, n in zip(row, widths, strict=True)).rstrip() for row in rows]
            lines += [f"  parameters of {name}, {experiment.settings[0].name}", *(f"    {line}" for line in table)]
    return "".join(f"{line}\n" for line in lines)


def time_figures(again: bool = False) -> tuple[dict[tuple[str, str], float], str]:
    """(figure, scale) -> estimated seconds on this machine, and the engine that would train figure 1. They are measured
    once per machine and version, and kept in the cache directory."""
    engine = str(next(iter(with_engine(take("fig1", "paper")).variants.values())).engine)
    same = _measured_on(engine)
    with contextlib.suppress(OSError, Failed, ValueError, KeyError, TypeError):
        found = json.loads((cache_directory() / TIMES).read_text(encoding="utf-8"))
        if not again and found["measured_on"] == same:
            return {(name, scale): float(found["seconds"][name][scale]) for name in SHELF for scale in SCALES}, engine
    asked, seconds = "torch" if engine == "torch" else "auto", {}
    paces: dict[str, Paces] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `run` warns which variants use torch, and why
        for name in SHELF:
            experiments = {scale: with_engine(take(name, scale).with_changes(engine=asked)) for scale in SCALES}
            run = SHELF[name].run or name
            pace = paces[run] = paces.get(run) or calibrate(experiments["laptop"])
            seconds |= {(name, scale): estimate(experiment, pace).seconds for scale, experiment in experiments.items()}
    by_scale = {name: {scale: seconds[name, scale] for scale in SCALES} for name in SHELF}
    with contextlib.suppress(OSError, Failed):  # it is not an error if the cache cannot be written
        write_json(cache_directory() / TIMES, {"measured_on": same, "seconds": by_scale})
    return seconds, engine


def _measured_on(engine: str) -> str:
    """Machine, versions, compiler and sizes of all figures: times are measured again when one of them changes."""
    sizes = [(name, entry.sizes, entry.variants) for name, entry in SHELF.items()]
    return sha256(repr([cpu(), cores(), versions(), engine, describe_compiler(), sizes]).encode())
