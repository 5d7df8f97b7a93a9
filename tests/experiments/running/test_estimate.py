import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from resharpen.experiments.running import estimate
from resharpen.experiments.running.runner import run, with_engine
from resharpen.experiments.specs.shelf import take
from resharpen.views.listings import print_shelf


@pytest.fixture
def no_overhead(monkeypatch):
    monkeypatch.setattr(estimate, "SHARD_SECONDS", 0.0)


@pytest.mark.usefixtures("no_overhead")
def test_time_is_steps_times_pace_over_workers(tiny):
    seconds = {"sct-v4-s1": 1.0, "sct-v4-s2": 3.0}
    pace = {(s, v): estimate.Pace(seconds[s], 16, tiny.batch) for s in seconds for v in ("pre", "peri")}
    found = estimate.estimate(tiny, pace, workers=2)
    # two variants, one group each: 12 steps at 1 and at 3 seconds, on two workers
    assert found.seconds == pytest.approx(2 * 12 * (1 + 3) / 2)
    assert (found.shards, found.models) == (4, 64)
    doubled = estimate.estimate(replace(tiny, models=32), pace, workers=2)
    assert doubled.seconds == pytest.approx(2 * found.seconds)
    larger = estimate.estimate(replace(tiny, batch=2 * tiny.batch), pace, workers=2)
    assert larger.seconds == pytest.approx(2 * found.seconds)
    slower = pace | {(s, "peri"): replace(pace[s, "peri"], seconds=3 * seconds[s]) for s in seconds}
    assert estimate.estimate(tiny, slower, workers=2).seconds == pytest.approx(2 * found.seconds)


@pytest.mark.usefixtures("no_overhead")
def test_models_that_train_one_by_one_cost_each(tiny):
    task = tiny.settings[0].task
    for together, models in ((1, 5), (16, 1)):
        pace = estimate.Pace(0.5, together, tiny.batch, checkpoint=0.01, report=0.02)
        alone = replace(pace, models=1).shard(tiny, task, 1)
        assert pace.shard(tiny, task, 5) == pytest.approx(models * alone)


@pytest.mark.usefixtures("no_overhead")
def test_scoring_is_part_of_the_estimate(tiny):
    """Two kinds of weights at each of three checkpoints, and six reports; all 4 x 2^3 - 4 = 28 states of v = 4."""
    task = tiny.settings[0].task
    size = sum(length * states for length, states in ((1, 4), (2, 12), (3, 12)))
    assert estimate.size_of(task, "report") == size
    pace = estimate.Pace(0.0, 16, tiny.batch, checkpoint=0.01, report=0.1)
    assert pace.shard(tiny, task, 16) == pytest.approx(2 * 3 * 0.01 * size + 6 * 0.1 * size)


def test_loading_code_is_not_a_cost_of_every_report():
    """In a fresh process the first report loads torch and its compiler, which takes many times as long."""
    twice = """
from resharpen.experiments.running.estimate import calibrate
from resharpen.experiments.running.runner import with_engine
from resharpen.experiments.specs.shelf import take
experiment = with_engine(take("fig1", "smoke").with_changes(variants=["pre"]))
print(*(calibrate(experiment)["sct-v9-s1", "pre"].report for _ in range(2)))
"""
    told = subprocess.run([sys.executable, "-c", twice], capture_output=True, text=True, check=True)
    first, second = map(float, told.stdout.split())
    assert first < 4 * second


def test_disk_is_about_what_a_run_takes(tiny, tmp_path):
    store = run(tiny, tmp_path / "r", workers=1)
    real = sum(path.stat().st_size for path in (store.directory / "shards").rglob("*") if path.is_file())
    guess = estimate.estimate(
        tiny, {(s.name, v): estimate.Pace(0.0, 16, 1) for s in tiny.settings for v in tiny.variants}
    ).bytes
    assert 0.3 < guess / real < 3


def test_calibration_measures_something(tiny):
    pace = estimate.calibrate(with_engine(replace(tiny, steps=30)))
    assert set(pace) == {(setting, variant) for setting in ("sct-v4-s1", "sct-v4-s2") for variant in ("pre", "peri")}
    assert all(0 < p.seconds < 1 and p.models == 16 for p in pace.values())
    assert all(0 < p.checkpoint < 1 and 0 < p.report < 1 for p in pace.values())


def test_a_whole_group_is_timed_and_its_time_shared(monkeypatch):
    """Minibatches are drawn once per group: a model that is timed alone would pay for them sixteen times."""
    timed = []

    def measure_pace(experiment, shard, scored):
        timed.append(shard.count)
        return estimate.Pace(1.6, shard.count, experiment.batch, checkpoint=0.16, report=0.32)

    monkeypatch.setattr(estimate, "measure_pace", measure_pace)
    experiment = with_engine(take("fig3", "laptop").with_changes(engine="native"))
    paces = set(estimate.calibrate(experiment).values())
    assert set(timed) == {16}
    assert [(p.models, p.seconds, p.checkpoint, p.report) for p in paces] == [
        (1, *map(pytest.approx, (0.1, 0.01, 0.02)))
    ]


def test_variants_that_differ_in_more_than_the_placement_are_timed_apart(tiny, monkeypatch):
    seen = []

    def measure_pace(experiment, shard, scored):
        seen.append(shard.variant)
        return estimate.Pace(float(len(seen)), shard.count, experiment.batch)

    monkeypatch.setattr(estimate, "measure_pace", measure_pace)
    names = ["none", "pre", "peri", "pre+log-n"]
    pace = estimate.calibrate(with_engine(replace(tiny, settings=tiny.settings[:1], variants=names)))
    assert seen == ["none", "peri", "pre+log-n"]
    assert {variant: p.seconds for (_, variant), p in pace.items()} == {
        "none": 1.5,
        "pre": 1.5,
        "peri": 1.5,
        "pre+log-n": 3.0,
    }


def test_the_shelf_is_listed_at_four_scales_and_measured_once(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("RESHARPEN_CACHE", str(tmp_path))
    measured = []

    def measure_pace(experiment, shard, scored):
        measured.append(shard)
        return estimate.Pace(1e-3, 16, 64)

    monkeypatch.setattr(estimate, "measure_pace", measure_pace)
    monkeypatch.setattr(estimate, "size_of", lambda task, use: 1.0)
    first = estimate.time_figures()
    times = len(measured)
    assert times > 0
    assert estimate.time_figures() == first
    assert len(measured) == times
    assert estimate.time_figures(again=True) == first
    assert len(measured) == 2 * times
    for broken in ("not json", "{}", '{"measured_on": "another machine", "seconds": {}}'):
        (tmp_path / "times.json").write_text(broken)
        assert estimate.time_figures() == first
    # 1,000 models in 63 groups x 32 settings and variants x 1,000,000 steps x 1 ms, two workers
    print_shelf(*first, 2, Console(width=140))
    said = capsys.readouterr().out
    for name in ("fig1", "fig4", "fig7", "placements", "smoke", "laptop", "overnight", "paper", "days", "96 x 20,000"):
        assert name in said
    print_shelf(*first, 2, Console(width=80))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert {"fig1", "fig7", "placements", "remedies-dyck"} <= {line.partition(" ")[0] for line in lines}
