"""Schedules against torch.optim.lr_scheduler, and what is asked of an own one."""

import numpy as np
import pytest
import torch
from helpers import make_ensemble, minimal_problem
from torch.optim import lr_scheduler

import resharpen as rs
from resharpen.engines.choose import make_engine, why_not_native
from resharpen.engines.torch.definition import Definition
from resharpen.optim.schedules import SCHEDULES

STEPS = 50


def multipliers(schedule, warmup, end, steps=STEPS):
    draws = {"warmup_steps": np.array([float(warmup)]), "end_multiplier": np.array([end])}
    return schedule.multipliers(draws, steps, np.arange(1.0, steps + 1)[:, None])[:, 0]


def by_torch(make, steps=STEPS):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler, found = make(optimizer), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize(("warmup", "end"), [(0, 0.1), (7, 0.0), (49, 0.3), (45, 0.5), (200, 0.1)])
@pytest.mark.parametrize("name", SCHEDULES)
def test_it_is_torch_s(name, warmup, end):
    """W steps t / W, then another scheduler from its first step on; the last fifth are 10 steps."""
    left = max(1, STEPS - 1 - warmup)
    plateau = max(0, left - 10) if name == "wsd" else 0

    def make(optimizer):
        stages = {warmup: lr_scheduler.LambdaLR(optimizer, lambda n: (n + 1) / max(1, warmup))} if warmup else {}
        if plateau:
            stages[warmup + plateau] = lr_scheduler.ConstantLR(optimizer, 1.0, 1)
        if name == "cosine":
            last = lr_scheduler.CosineAnnealingLR(optimizer, left, end)
        else:
            last = lr_scheduler.LinearLR(optimizer, 1.0, 1.0 if name == "constant" else end, left - plateau)
        return lr_scheduler.SequentialLR(optimizer, [*stages.values(), last], list(stages)) if stages else last

    expected = by_torch(make)
    np.testing.assert_allclose(multipliers(SCHEDULES[name], warmup, end), expected, rtol=1e-9, atol=1e-12)


def test_wsd_without_room_for_a_plateau_is_linear():
    assert np.array_equal(multipliers(SCHEDULES["wsd"], 45, 0.5), multipliers(SCHEDULES["linear"], 45, 0.5))


def test_wsd_decays_over_the_last_fifth():
    found = multipliers(SCHEDULES["wsd"], 0, 0.0, steps=100)
    assert (found[:80] == 1).all()
    np.testing.assert_allclose(found[80:], 1 - np.arange(1, 21) / 20, atol=1e-12)


@pytest.mark.parametrize("name", SCHEDULES)
def test_both_engines_have_it(name):
    problem = minimal_problem("peri", schedule=name, steps=20)
    assert why_not_native(problem) == ""
    ensemble = make_ensemble(problem, peak_learning_rate=1e-3, warmup_steps=3, adam_epsilon=1e-4)
    native, exact = make_engine("native", problem, ensemble), Definition(problem, ensemble, "float64")
    for engine in (native, exact):
        engine.advance(20)
    for key, x in exact.dump().items():
        if key.startswith("theta."):
            np.testing.assert_allclose(native.dump()[key], x, rtol=1e-3, atol=1e-5, err_msg=key)


@rs.schedule(hyperparameters={"period": rs.Row(2, 20, floor=True)})
def sawtooth(t, p):
    return rs.warmed_up(t, p, 1 - (t % p.period) / (2 * p.period))


def test_an_own_one_trains_natively_with_a_row_of_its_own():
    problem = minimal_problem("peri", schedule=sawtooth, steps=20)
    ensemble = make_ensemble(problem)
    assert "period" in ensemble.hyperparameters
    whole, parts = (make_engine("native", problem, ensemble) for _ in range(2))
    whole.advance(9)
    for n in (4, 5):
        parts.advance(n)
    assert all(np.array_equal(whole.dump()[name], x) for name, x in parts.dump().items())


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda t, p: -t, "negative or not finite"),
        (lambda t, p: t / 0, "negative or not finite"),
        (lambda t, p: np.ones((50, 7)), "returns .*, not"),
        (lambda t, p: t - t[0] + 1, "must be a function of t"),
        (lambda t, p: p.warmup * t, "p.warmup does not exist; available: p.end_multiplier, p.steps, p.warmup_steps"),
        (lambda t, p: None, "fails for t of shape"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_what_is_no_schedule_is_refused(function, message):
    with pytest.raises(rs.UserError, match=message):
        multipliers(rs.schedule()(function), 3, 0.1)
