from dataclasses import replace

import pytest
from rich.console import Console

from resharpen.experiments.running import estimate
from resharpen.experiments.running.runner import run, with_engine
from resharpen.views.listings import print_shelf


def test_time_is_steps_times_pace_over_workers(tiny):
    seconds = {"sct-v4-s1": 1.0, "sct-v4-s2": 3.0}
    pace = {(s, v): estimate.Pace(seconds[s], 16, tiny.batch) for s in seconds for v in ("pre", "peri")}
    found = estimate.estimate(tiny, pace, workers=2)
    # two variants, one group each: 12 steps at 1 and at 3 seconds, on two workers
    assert found.seconds == pytest.approx(2 * 12 * (1 + 3) / 2 * estimate.VALIDATION_SHARE)
    assert (found.shards, found.models) == (4, 64)
    doubled = estimate.estimate(replace(tiny, models=32), pace, workers=2)
    assert doubled.seconds == pytest.approx(2 * found.seconds)
    larger = estimate.estimate(replace(tiny, batch=2 * tiny.batch), pace, workers=2)
    assert larger.seconds == pytest.approx(2 * found.seconds)
    slower = pace | {(s, "peri"): replace(pace[s, "peri"], seconds=3 * seconds[s]) for s in seconds}
    assert estimate.estimate(tiny, slower, workers=2).seconds == pytest.approx(2 * found.seconds)


def test_models_that_train_one_by_one_cost_each():
    assert estimate.Pace(0.5, models=1, batch=8).step(models=5, batch=8) == 2.5
    assert estimate.Pace(0.5, models=16, batch=8).step(models=5, batch=8) == 0.5


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


def test_variants_that_differ_in_more_than_the_placement_are_timed_apart(tiny, monkeypatch):
    seen = []
    monkeypatch.setattr(estimate, "seconds_per_step", lambda _, shard: seen.append(shard.variant) or float(len(seen)))
    names = ["none", "pre", "peri", "pre+log-n"]
    pace = estimate.calibrate(with_engine(replace(tiny, settings=tiny.settings[:1], variants=names)))
    assert seen == ["none", "peri", "pre+log-n"]
    assert {variant: p.seconds for (_, variant), p in pace.items()} == {
        "none": 1.5,
        "pre": 1.5,
        "peri": 1.5,
        "pre+log-n": 3.0,
    }


def test_the_shelf_is_listed_at_four_scales(monkeypatch, capsys):
    monkeypatch.setattr(estimate, "seconds_per_step", lambda experiment, shard: 1e-3)
    print_shelf(*estimate.time_figures(), 2, Console(width=140))
    said = capsys.readouterr().out
    for name in ("fig1", "fig4", "fig7", "placements", "smoke", "laptop", "overnight", "paper"):
        assert name in said
    # 1,000 models in 63 groups x 32 settings and variants x 1,000,000 steps x 1 ms, a tenth more, two workers
    assert "days" in said
