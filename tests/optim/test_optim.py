import math

import numpy as np
import pytest
import torch

from resharpen.optim.adamw import clip_factor, has_decay
from resharpen.optim.bema import bema_weights
from resharpen.optim.hyperparameters import TABLE, draw, narrowed
from resharpen.optim.schedule import ema_weight, learning_rate, one_minus_power


def test_bema_numbers():
    """theta_n = n with rho = 10, kappa = 0.5, eta = 0.2: the recursion as the paper prints it, indices included."""
    expected = [0.93527169, 2.04063288, 3.24819751, 4.51833058, 5.82716150]
    ema, got = np.zeros(1), []
    for n in range(5):
        b = ema_weight(np.array(float(n)), np.array([10.0]), np.array([0.5]))
        ema = (1 - b) * ema + b * (n + 1)
        theta = np.array([float(n + 1)])
        got.append(bema_weights(theta, np.zeros(1), ema, np.array([n + 1]), np.array([10.0]), np.array([0.2]))[0])
    assert np.allclose(got, expected, atol=5e-9)


def test_bema_power_zero_is_the_largest_correction():
    theta, ema = np.array([[3.0]]), np.array([[1.0]])
    got = bema_weights(theta, np.array([[0.5]]), ema, np.array([7]), np.array([10.0]), np.array([0.0]))
    assert got == 3.0 - 0.5 + 1.0


@pytest.mark.parametrize(
    ("n", "warmup", "expected"),
    [
        (0, 0, 1.0),  # no warm-up: the first step has the peak
        (99, 0, 0.1),  # the last step has the end multiplier
        (0, 10, 0.1),
        (9, 10, 1.0),
        (10, 10, 1.0),
        (99, 10, 0.1),
        (50, 1000, 0.051),  # warm-up longer than training is legal, and never rescaled
        (99, 99, 1.0),
    ],
)
def test_learning_rate(n, warmup, expected):
    got = learning_rate(np.array(float(n)), 100, np.array([2.0]), np.array([float(warmup)]), np.array([0.1]))
    assert np.allclose(got, 2 * expected)


def test_one_minus_power_is_exact_near_one():
    got = one_minus_power(np.array([1e-5]), np.array([1.0]))[0]
    assert math.isclose(got, 1e-5, rel_tol=1e-12)
    assert one_minus_power(np.array([1.0]), np.array([3.0]))[0] == 1.0  # beta = 0


def test_clip_factor():
    norm = torch.tensor([0.0, 0.5, 4.0, 2.0])
    assert clip_factor(norm, torch.full((4,), 2.0)).tolist() == [1.0, 1.0, 0.5, 1.0]


def test_decay_spares_embeddings_gains_and_biases():
    assert not any(map(has_decay, ("E", "g_block_in", "layer.g_residual", "b_1")))
    assert all(map(has_decay, ("U", "W_Q", "W_O", "layer.W_V", "q")))


RANGES = {
    "rms_epsilon": (1e-10, 1e-4),
    "one_minus_beta1": (1e-2, 1),
    "one_minus_beta2": (1e-5, 1e-1),
    "weight_decay": (1e-6, 1),
    "adam_epsilon": (1e-12, 1e-8),
    "max_gradient_norm": (1e-2, 1e2),
    "peak_learning_rate": (1e-5, 1e-2),
    "warmup_steps": (0, 1e4),
    "end_multiplier": (1e-4, 1),
    "bema_power": (0, 1),
    "ema_power": (0, 1),
    "ema_lag": (1, 1e10),
}


def test_draws_fill_the_ranges_of_the_table():
    draws = draw(TABLE, 0, "setting", np.arange(4000))
    assert set(draws) == set(RANGES)
    for name, (low, high) in RANGES.items():
        x = draws[name]
        assert low <= x.min()
        assert x.max() <= high
        if name.endswith("power"):
            u = x
        elif name == "warmup_steps":
            assert (x == np.floor(x)).all()
            assert 0.30 < (x == 0).mean() < 0.37  # log10 is below 0 for a third of [-2, 4]
            continue
        else:
            u = np.log10(x / low) / np.log10(high / low)
        assert abs(u.mean() - 0.5) < 0.02
        assert abs(u.std() - 12**-0.5) < 0.01


def test_draws_do_not_depend_on_what_else_is_drawn():
    everything = draw(TABLE, 7, "setting", np.arange(100))
    some = draw({"ema_lag": TABLE["ema_lag"]}, 7, "setting", np.array([99, 3]))
    assert (some["ema_lag"] == everything["ema_lag"][[99, 3]]).all()
    assert (draw(TABLE, 7, "other", np.arange(100))["ema_lag"] != everything["ema_lag"]).all()
    assert (draw(TABLE, 8, "setting", np.arange(100))["ema_lag"] != everything["ema_lag"]).all()


def test_rows_are_independent():
    draws = draw(TABLE, 0, "setting", np.arange(4000))
    ranks = np.stack([np.argsort(np.argsort(x)) for name, x in draws.items() if name != "warmup_steps"])
    correlation = np.corrcoef(ranks) - np.eye(len(ranks))
    assert np.abs(correlation).max() < 0.08


def test_fixed_and_narrowed_rows():
    rows = {"a": narrowed("peak_learning_rate", 1e-3), "b": narrowed("weight_decay", (1e-3, 1e-2))}
    draws = draw(rows, 0, "setting", np.arange(200))
    assert set(draws["a"]) == {1e-3}
    assert 1e-3 <= draws["b"].min() < 1.5e-3
    assert 8e-3 < draws["b"].max() <= 1e-2


@pytest.mark.parametrize(
    ("name", "value"),
    [("peak_learning_rate", 0.0), ("one_minus_beta1", 1.5), ("ema_lag", (10.0, 1.0)), ("weight_decay", (0.0, 1.0))],
)
def test_bad_rows(name, value):
    with pytest.raises(ValueError, match="allowed are a number or"):
        narrowed(name, value)


def test_weight_decay_can_be_switched_off():
    assert narrowed("weight_decay", 0.0).value(np.array([0.3])) == 0
