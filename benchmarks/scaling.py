"""What more workers bring and what launchers cost: shards of a minute each, on 1 and 2 workers, local and as Ray tasks.

    python benchmarks/scaling.py --json rows.json
    python benchmarks/scaling.py --hours        # the table of docs/cluster.md: every figure at paper scale

Every worker gets as many shards as any other, so that a perfect launcher takes the same time for all. `bare` is the
engine alone in as many processes, no files, no checkpoints, no launcher: what this machine can do, whose second core
may be half of one, or share its clock with the first. Rounds alternate; the best of each counts.

Columns. model-steps/s: from the first report of a shard to the end of the run. efficiency: of n workers against n times
the pace of one. overhead: time of Ray against that of local processes. start: seconds until the first shard trains, for
Ray with a cluster of its own, which is not in the pace. Goals: efficiency at least 0.9, overhead under 5%.
"""

from __future__ import annotations

import argparse
import heapq
import json
import multiprocessing
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import say

from resharpen.engines.choose import make_engine
from resharpen.experiments.keeping.machine import provenance
from resharpen.experiments.running.estimate import Paces, calibrate, measure_pace
from resharpen.experiments.running.launchers import launch
from resharpen.experiments.running.ray_launcher import Ray
from resharpen.experiments.running.runner import Observer, run, with_engine
from resharpen.experiments.specs.shelf import SHELF, take
from resharpen.experiments.specs.spec import Experiment
from resharpen.streams import GROUP
from resharpen.words import duration

WORKERS = (1, 2)
VALIDATION_SHARE = 1.1
"""Checkpoints and reports of a long run take about a tenth of the training time."""
SHARDS = 2
"""Of each worker."""
CORES = (2, 64, 1_024)
PRICE = 0.04
"""Dollars for an hour of a core: an assumption, about what clouds ask for one."""


def experiment_of(seconds: float) -> Experiment:
    """Set Complement, v = 9 and s = 8, in shards of about so many seconds."""
    whole = take("fig1", "paper").with_changes(models=GROUP, variants=["peri"])
    longest = with_engine(replace(whole, settings=whole.settings[-1:]))
    pace = min(measure_pace(longest, longest.shards()[0], scored=False).seconds for _ in range(5))
    return replace(longest, steps=max(100, round(seconds / pace / VALIDATION_SHARE)))


def through_launcher(experiment: Experiment, launcher: str, workers: int) -> tuple[float, float]:
    """Seconds until the first shard trains, and from then to the end."""
    reports, began = list[float](), time.perf_counter()
    experiment = replace(experiment, models=GROUP * SHARDS * workers)
    with tempfile.TemporaryDirectory() as directory:
        run(
            experiment,
            Path(directory) / "run",
            workers=workers,
            launcher=Ray() if launcher == "ray" else launch,
            observer=Observer(update=lambda _: reports.append(time.perf_counter())),
        )
    return reports[0] - began, time.perf_counter() - reports[0]


def bare(experiment: Experiment, workers: int) -> tuple[float, float]:
    """The same steps of the engine alone, side by side."""
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        return 0.0, max(pool.map(_advance, [replace(experiment, models=GROUP)] * workers, chunksize=1))


def _advance(experiment: Experiment) -> float:
    shard, spent = experiment.shards()[0], 0.0
    for _ in range(SHARDS):  # from the start each time: late steps cost more than early ones
        engine = make_engine("native", experiment.problem(shard), experiment.ensemble(shard))
        began = time.perf_counter()
        engine.advance(experiment.steps)
        spent += time.perf_counter() - began
    return spent


def measure(seconds: float, rounds: int) -> list[dict[str, Any]]:
    experiment = experiment_of(seconds)
    systems = {(system, n): list[tuple[float, float]]() for system in ("bare", "local", "ray") for n in WORKERS}
    for _ in range(rounds):
        for (system, n), found in systems.items():
            found.append(bare(experiment, n) if system == "bare" else through_launcher(experiment, system, n))
            say(f"{system}, {n} workers: {found[-1][1]:.1f} s")
    rows = []
    for (system, n), found in systems.items():
        steps = n * SHARDS * GROUP * experiment.steps
        row = {"case": f"shards-{seconds:g}s", "system": f"{system}-{n}", "unit": "model-steps/s"}
        row |= {"value": steps / min(work for _, work in found), "rounds": [steps / work for _, work in found]}
        rows.append(row | {"workers": n, "start": min(start for start, _ in found)})
    return rows


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    pace = {row["system"]: row["value"] for row in rows}
    print(
        f"{'system':<10}{'workers':>8}{'model-steps/s':>15}{'spread':>8}{'efficiency':>12}{'overhead':>10}{'start':>9}"
    )
    for row in rows:
        system, n = row["system"].split("-")[0], row["workers"]
        efficiency = row["value"] / (n * pace[f"{system}-1"])
        overhead = f"{pace[f'local-{n}'] / row['value'] - 1:.1%}" if system == "ray" else "-"
        spread, start = f"{1 - min(row['rounds']) / row['value']:.0%}", f"{row['start']:.1f} s"
        print(f"{system:<10}{n:>8}{row['value']:>15,.0f}{spread:>8}{efficiency:>12.2f}{overhead:>10}{start:>9}")


# ---- hours and cost -------------------------------------------------------------------------------------------------


def best_pace(experiment: Experiment, tries: int) -> Paces:
    """The best of several short calibrations: a busy machine can only make them slower."""
    found = [calibrate(experiment) for _ in range(tries)]
    return {key: min((paces[key] for paces in found), key=lambda pace: pace.seconds) for key in found[0]}


def shard_hours(experiment: Experiment, tries: int) -> list[float]:
    """Of one core, for each shard."""
    pace = best_pace(experiment, tries)
    return [
        pace[shard.setting.name, shard.variant].shard(experiment, shard.setting.task, shard.count) / 3_600
        for shard in experiment.shards()
    ]


def hours_on(cores: int, shards: Sequence[float]) -> float:
    """Until the last shard is done, each being taken by the first core that is free."""
    free = [0.0] * cores
    for hours in shards:
        heapq.heapreplace(free, free[0] + hours)
    return max(free)


def print_hours(tries: int) -> None:
    print("| figure | models | shards | core-hours | cost |", *(f" {n:,} cores |" for n in CORES), sep="")
    print("|---|---|---|---|---|", *("---|" for _ in CORES), sep="")
    for name, entry in SHELF.items():
        if entry.run and name != entry.run.split("-")[0]:
            continue
        experiment = with_engine(take(name, "paper"))
        shards = shard_hours(experiment, tries)
        models = sum(shard.count for shard in experiment.shards())
        times = [f" {duration(3_600 * hours_on(n, shards))} |" for n in CORES]
        total, cost = f"{sum(shards):,.0f}", f"${sum(shards) * PRICE:,.2f}"
        print(f"| {entry.run or name} | {models:,} | {len(shards):,} | {total} | {cost} |", *times, sep="")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shards of five seconds, one round; a minute or two")
    parser.add_argument("--seconds", type=float, help="of a shard (60; 5 with --quick)")
    parser.add_argument("--rounds", type=int, default=2, help="of every system (2; 1 with --quick)")
    parser.add_argument("--hours", action="store_true", help="hours and cost of every figure at paper scale instead")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    asked = parser.parse_args()
    warnings.simplefilter("ignore", ResourceWarning)
    if asked.hours:
        print_hours(1 if asked.quick else 5)
        return
    rows = measure(asked.seconds or (5 if asked.quick else 60), 1 if asked.quick else asked.rounds)
    print_rows(rows)
    if asked.json:
        machine = {"case": "machine", "system": "cores", "unit": "cores", **provenance()}
        asked.json.write_text(json.dumps([machine | {"value": machine["cores"]}, *rows], indent=1))


if __name__ == "__main__":
    main()
