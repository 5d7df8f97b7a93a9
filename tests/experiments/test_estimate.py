from dataclasses import replace

import pytest
from resharpen.experiments.runner import run
from rich.console import Console

from resharpen.experiments import estimate
from resharpen.views import shelf


def test_time_is_steps_times_pace_over_workers(tiny):
    pace = {"sct-v4-s1": estimate.Pace(1.0, 16, tiny.batch), "sct-v4-s2": estimate.Pace(3.0, 16, tiny.batch)}
    found = estimate.estimate(tiny, pace, workers=2)
    # two placements, one group each: 12 steps at 1 and at 3 seconds, on two workers
    assert found.seconds == pytest.approx(2 * 12 * (1 + 3) / 2 * estimate.VALIDATION_SHARE)
    assert (found.shards, found.models) == (4, 64)
    doubled = estimate.estimate(replace(tiny, models=32), pace, workers=2)
    assert doubled.seconds == pytest.approx(2 * found.seconds)
    larger = estimate.estimate(replace(tiny, batch=2 * tiny.batch), pace, workers=2)
    assert larger.seconds == pytest.approx(2 * found.seconds)


def test_models_that_train_one_by_one_cost_each():
    assert estimate.Pace(0.5, models=1, batch=8).step(models=5, batch=8) == 2.5
    assert estimate.Pace(0.5, models=16, batch=8).step(models=5, batch=8) == 0.5


def test_disk_is_about_what_a_run_takes(tiny, tmp_path):
    store = run(tiny, tmp_path / "r", workers=1)
    real = sum(path.stat().st_size for path in (store.directory / "shards").rglob("*") if path.is_file())
    guess = estimate.estimate(tiny, {s.name: estimate.Pace(0.0, 16, 1) for s in tiny.settings}).bytes
    assert 0.3 < guess / real < 3


def test_calibration_measures_something(tiny):
    pace = estimate.calibrate(replace(tiny, steps=30))
    assert set(pace) == {"sct-v4-s1", "sct-v4-s2"}
    assert all(0 < p.seconds < 1 and p.models == 16 for p in pace.values())


def test_the_shelf_is_listed_at_three_scales(monkeypatch, capsys):
    monkeypatch.setattr(estimate, "seconds_per_step", lambda experiment, shard: 1e-3)
    shelf.print_shelf(Console(width=140))
    said = capsys.readouterr().out
    for name in ("fig1", "fig4", "fig7", "placements", "smoke", "laptop", "paper"):
        assert name in said
    # 1,000 models in 63 groups x 32 settings and placements x 1,000,000 steps x 1 ms, a tenth more, two workers
    assert "days" in said
