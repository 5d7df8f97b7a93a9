import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import make_ensemble, make_problem, of_parts, retriever_problem

import resharpen as rs
from resharpen import own
from resharpen.engines.torch.fast import TorchEngine
from resharpen.errors import UserError
from resharpen.models import Minimal, Transformer
from resharpen.optim import OPTIMIZERS, find_optimizer
from resharpen.optim.adamw import one_minus_power
from resharpen.optim.bema import bema_weights
from resharpen.optim.clipping import clip_factor, gradient_norm
from resharpen.optim.hyperparameters import TABLE, draw, narrowed
from resharpen.optim.schedule import ema_weight, step_table
from resharpen.optim.schedules import SCHEDULES
from resharpen.tasks import SetComplement


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
    draws = {**draw(TABLE, 0, "x", np.arange(1)), "peak_learning_rate": np.array([2.0])}
    draws |= {"warmup_steps": np.array([float(warmup)]), "end_multiplier": np.array([0.1])}
    got = step_table(OPTIMIZERS["adamw"], SCHEDULES["linear"], draws, 100, n, 1)["lr"]
    assert np.allclose(got, 2 * expected)


def test_one_minus_power_is_exact_near_one():
    got = one_minus_power(np.array([1e-5]), np.array([1.0]))[0]
    assert math.isclose(got, 1e-5, rel_tol=1e-12)
    assert one_minus_power(np.array([1.0]), np.array([3.0]))[0] == 1.0  # beta = 0


def test_clip_factor():
    norm = torch.tensor([0.0, 0.5, 4.0, 2.0])
    assert clip_factor(norm, torch.full((4,), 2.0)).tolist() == [1.0, 1.0, 0.5, 1.0]


def test_the_norm_is_that_of_each_model_s_own_gradient():
    g_MxW = torch.tensor([[3.0, 0.0, 4.0], [1.0, 1.0, 1.0]])
    further = torch.tensor([[[0.0], [12.0]], [[0.0], [-1.0]]]), torch.tensor([0.0, 2.0])
    assert torch.allclose(gradient_norm([g_MxW]), torch.tensor([5.0, 3.0**0.5]))
    assert torch.allclose(gradient_norm([g_MxW, *further]), torch.tensor([13.0, 8.0**0.5]))


def test_decay_spares_embeddings_gains_and_biases():
    """Of every model, by name: E, what norms learn and biases; everything else decays."""
    seen, task = set(), SetComplement(5)
    on_tokens = [of_parts(task, model, "all", 3, 4, 5, 0) for model in (Minimal(5, 4, 2, 4), Transformer(5))]
    for problem in (*on_tokens, retriever_problem("peri")):
        for name, parameter in problem.model.parameters(problem.parts).items():
            last = name.split(".")[-1]
            assert parameter.decays == (last != "E" and not last.startswith(("g_", "b_"))), name
            seen.add(last)
    assert seen >= {"E", "U", "W_Q", "W_1", "q", "b_1", "g_residual"}


def test_what_a_part_learns_decays_if_it_is_drawn():
    assert rs.learned("d", "d").decays
    assert not rs.learned("heads", start=0.5).decays


def test_the_table_of_a_step_has_the_columns_of_its_optimizer():
    """Steps 4 and 5, counted from 0, of two models: 1 / (1 - beta^t) with t = 5 and 6."""
    draws = {**draw(TABLE, 0, "x", np.arange(2)), "one_minus_beta1": np.array([0.1, 1.0])}
    table = step_table(OPTIMIZERS["adamw"], SCHEDULES["linear"], draws, 100, first=4, n=2)
    assert set(table) == {"lr", "correction1", "correction2", "ema_weight"}
    assert np.allclose(table["correction1"], [[1 / (1 - 0.9**5), 1.0], [1 / (1 - 0.9**6), 1.0]], rtol=1e-12)

    @rs.optimizer(columns=lambda draws, t: {"half": draws["weight_decay"] / 2 + 0 * t})
    def plain(theta, g, state, p):
        return theta, {}

    table = step_table(plain, SCHEDULES["linear"], draws, 100, first=0, n=3)
    assert set(table) == {"lr", "half", "ema_weight"}
    assert np.allclose(table["half"], np.broadcast_to(draws["weight_decay"] / 2, (3, 2)))


def test_an_update_of_adamw_by_hand():
    p = SimpleNamespace(
        one_minus_beta1=0.1,
        one_minus_beta2=0.01,
        correction1=2.0,
        correction2=3.0,
        adam_epsilon=1e-3,
        lr=0.5,
        decay=0.2,
    )
    zero = torch.zeros(1, 1)
    theta, state = OPTIMIZERS["adamw"].update(torch.tensor([[4.0]]), torch.tensor([[2.0]]), {"m": zero, "v": zero}, p)
    assert math.isclose(state["m"], 0.2, rel_tol=1e-6)
    assert math.isclose(state["v"], 0.04, rel_tol=1e-6)
    assert math.isclose(theta, 4 - 0.5 * 0.2 * 4 - 0.5 * 0.4 / (math.sqrt(0.12) + 1e-3), rel_tol=1e-6)


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


def still(theta, g, state, p):
    return theta, dict(state)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        *(((name,), f"cannot have the name '{name}'") for name in ("theta", "theta_0", "ema", "step", "loss")),
        (("m", "diverged_at"), "cannot have the name 'diverged_at'"),
        (("m", "m"), "cannot have the name 'm': every name once"),
        ("momentum", "a tuple of names"),
        (("m.E",), "a tuple of names"),
        ((1,), "a tuple of names"),
    ],
)
def test_a_state_that_would_be_taken_for_another(state, message):
    optimizer = rs.optimizer(state=state)(still)
    with pytest.raises(rs.UserError, match=message) as error:
        optimizer.check()
    assert "\n" not in str(error.value)
    problem = make_problem(optimizer=optimizer)
    with pytest.raises(rs.UserError, match=message):
        TorchEngine(problem, make_ensemble(problem))


def test_it_is_refused_before_anything_is_written(tmp_path):
    path = tmp_path / "own.py"
    path.write_text('import resharpen as rs\n\n@rs.optimizer(state=("ema",))\ndef mine(theta, g, state, p): ...\n')
    with pytest.raises(rs.UserError, match="cannot have the name 'ema'"):
        find_optimizer(own.refer(f"{path}:mine"))


@pytest.mark.parametrize("elementwise", [True, False])
@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda theta, m: (theta, {"momentum": m}), "declares the state m but returns momentum"),
        (lambda theta, m: (theta, {"m": m, "v": m}), "declares the state m but returns m, v"),
        (lambda theta, m: (theta, {}), "declares the state m but returns nothing"),
        (lambda theta, m: theta, "return the new theta and a dict of the new state"),
        (lambda theta, m: (theta, {"m": m[:, :1]}), "returns m with a different shape"),
        (lambda theta, m: (theta[:1], {"m": m}), "returns theta with a different shape"),
    ],
)
def test_an_update_returns_what_was_declared(elementwise, returned, message):
    """Or a momentum under another name would never change."""

    @rs.optimizer(state=("m",), elementwise=elementwise)
    def typo(theta, g, state, p):
        return returned(theta - p.lr * g, state["m"] + g)

    problem = make_problem(optimizer=typo)
    with pytest.raises(rs.UserError, match=message) as error:
        TorchEngine(problem, make_ensemble(problem)).advance(1)
    assert "\n" not in str(error.value)


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


def test_a_row_of_a_part_is_narrowed_in_its_own_scale():
    row = rs.Row(0.0, 4.0, scale="linear", may_be_zero=True, at_most=8.0)
    assert narrowed("width", (1.0, 2.0), row).value(np.array([0.5])) == 1.5
    with pytest.raises(ValueError, match="low <= high <= 8"):
        narrowed("width", 9.0, row)


def test_a_row_is_narrowed_to_another_within_its_bounds():
    assert narrowed("warmup_steps", rs.Row(1, 9, scale="linear")).value(np.array([0.1])) == 1.8
    assert narrowed("shift", (-0.5, 0.5), rs.Row(-1, 1, scale="linear")).value(np.array([0.5])) == 0
    for name, row in (("one_minus_beta1", rs.Row(2, 3)), ("ema_lag", rs.Row(0, 1, scale="linear"))):
        with pytest.raises(UserError, match="allowed are a number or"):
            narrowed(name, row)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((0.0, 1.0), r'Row\(0, 1\): must be above 0, or have scale="linear"'),
        ((-1.0, 1.0), "must be above 0"),
        ((3.0, 1.0), r"Row\(3, 1\): must be low <= high, both finite"),
        ((1.0, float("nan")), "both finite"),
        ((1.0, float("inf")), "both finite"),
        (("1", 2.0), "low of a Row = '1': must be a number"),
        ((1.0, 2.0, "lin"), "unknown scale of a Row 'lin': did you mean 'linear'"),
    ],
)
def test_what_is_no_row(row, message):
    with pytest.raises(UserError, match=message):
        rs.Row(*row)


def test_weight_decay_can_be_switched_off():
    assert narrowed("weight_decay", 0.0).value(np.array([0.3])) == 0
