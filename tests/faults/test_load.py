"""Many shards: bookkeeping that is linear and small, and a large finished run that is listed, resumed and drawn."""

import json
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from resharpen.cli import main
from resharpen.experiments.keeping.store import Run, locked, open_run
from resharpen.experiments.keeping.tables import curves_table, lengths_table, models_table
from resharpen.experiments.running.runner import with_engine
from resharpen.experiments.running.training import Kept
from resharpen.experiments.specs.schema import SLOTS
from resharpen.experiments.specs.toml import to_data

BOOKS = """
import json, re, sys, time
from pathlib import Path
from dataclasses import replace
from resharpen.experiments.keeping.store import Run, locked, open_run
from resharpen.experiments.running.runner import plan_of
from resharpen.experiments.specs.toml import from_data
spec = from_data(json.loads(sys.argv[1]))
def books(directory, shards):
    out, larger = Path(directory), replace(spec, models=16 * shards // 4)
    with locked(Run(out)):
        open_run(Run(out), larger)
    started = time.process_time()
    plan = plan_of(Run(out))
    by_name = {shard.name: shard for shard in plan.todo}
    assert len(by_name) == len(Run(out).shards()) == shards, len(by_name)
    assert Run(out).done() == []
    return time.process_time() - started
small, large = books(sys.argv[2], 10_000), books(sys.argv[3], 100_000)
# ru_maxrss would start at the size of the process that started this one
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
print(json.dumps([small, large, int(peak[1]) / 2**20]))
"""


def test_the_books_of_a_hundred_thousand_shards(spec, tmp_path):
    """Without training: under 1 GiB, and ten times as many take about ten times as long."""
    args = [json.dumps(to_data(spec)), str(tmp_path / "small"), str(tmp_path / "large")]
    done = subprocess.run([sys.executable, "-c", BOOKS, *args], capture_output=True, text=True, check=True)
    small, large, gibibytes = json.loads(done.stdout)
    print(f"10,000 shards: {small:.2f} s, 100,000: {large:.2f} s, {gibibytes:.2f} GiB")
    assert gibibytes < 1
    assert large < 20 * small + 1


def pretend(spec, directory, shards: int) -> Run:
    """A finished run whose results are made up."""
    spec = with_engine(replace(spec, models=16 * shards // 4))
    store = Run(directory)
    with locked(store):
        open_run(store, spec)
    checkpoints = spec.checkpoint_steps()
    length_S, n_S = np.arange(1, 4), np.full(3, 12)
    for shard in store.shards():
        problem = spec.problem(shard)
        parameters = problem.model.parameters(problem.parts)
        theta = {name: np.zeros((shard.count, *p.shape), np.float32) for name, p in parameters.items()}
        kept = Kept.empty(len(checkpoints), theta)
        steps = {slot: np.full(shard.count, 12) for slot in SLOTS}
        rng = np.random.default_rng(shard.first)
        reported = {(slot, "tvd"): (length_S, rng.random((shard.count, 3)), n_S) for slot in SLOTS}
        tables = {
            "models": models_table(spec, shard, spec.ensemble(shard).hyperparameters, np.full(shard.count, -1), steps),
            "curves": curves_table(shard, checkpoints, kept.score, kept.mean_loss(checkpoints)),
            "lengths": lengths_table(shard, reported),
        }
        store.files(shard).directory.mkdir(parents=True)
        store.files(shard).finish(tables, kept.weights, {})
    return store


@pytest.mark.parametrize("shards", [40, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_finished_run_of_many_shards(shards, spec, tmp_path, capsys):
    """Listed, resumed and drawn within a minute of the processor."""
    store = pretend(spec, tmp_path / "run", shards)
    seconds = {}
    for command in ("status", "run", "results", "figure"):
        started = time.process_time()
        main([command, str(store.directory)])
        seconds[command] = time.process_time() - started
    said = capsys.readouterr().out
    assert f"{shards} of {shards} finished" in said
    assert f"all {shards} shards are finished" in said
    with capsys.disabled():
        print({name: f"{spent:.1f} s" for name, spent in seconds.items()})
    assert max(seconds.values()) < 60
