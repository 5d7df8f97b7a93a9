"""The definition against NumPy written from the formulas, and against finite differences."""

import numpy as np
import pytest
from helpers import make_ensemble, make_problem

import reference
from resharpen.engines.base import Ensemble, arrays_of, initial_state, weights_of
from resharpen.engines.torch.definition import Definition

STATE = ("theta", "m", "v", "ema")


def moved(problem, ensemble, scale=0.6):
    """A state whose weights are far from zero, so that norms, attention and softmax are all at work."""
    rng = np.random.default_rng(1)
    state = {name: array.astype(np.float64) if array.dtype == np.float32 else array
             for name, array in initial_state(problem, ensemble).items()}  # fmt: skip
    for name in arrays_of(state, "theta"):
        state[f"theta.{name}"] = scale * rng.standard_normal(state[f"theta.{name}"].shape)
        state[f"ema.{name}"] = state[f"theta_0.{name}"] = state[f"theta.{name}"].copy()
    return state


def batch_of(problem, step):
    return problem.minibatch(0, step)


@pytest.mark.parametrize("placement", reference.HAS)
def test_gradients_against_finite_differences(placement):
    problem = make_problem(placement, v=4, s=2, batch=3)
    ensemble = make_ensemble(problem, 2)
    engine = Definition(problem, ensemble, dtype="float64")
    state = moved(problem, ensemble)
    engine.load(state)
    batch = batch_of(problem, 0)
    loss_M, got = engine.gradients(batch)
    for m in range(2):
        theta = {name: array[m] for name, array in arrays_of(state, "theta").items()}
        epsilon = ensemble.hyperparameters["rms_epsilon"][m]
        assert np.isclose(loss_M[m], reference.loss(theta, *batch[:2], placement, epsilon), rtol=1e-12)
        expected = reference.gradient(theta, *batch[:2], placement, epsilon)
        for name, g in expected.items():
            assert np.allclose(got[name][m].numpy(), g, rtol=1e-6, atol=1e-8), name


@pytest.mark.parametrize("placement", reference.HAS)
def test_two_whole_steps_against_numpy(placement):
    """Clip, decay mask, schedule, AdamW, EMA: every array of the state after two steps, and the sum of their losses."""
    problem = make_problem(placement, v=4, s=2, batch=3, steps=7)
    ensemble = make_ensemble(problem, 3, warmup_steps=1, ema_lag=3.0, max_gradient_norm=0.05)
    engine = Definition(problem, ensemble, dtype="float64")
    start = moved(problem, ensemble)
    engine.load(start)
    engine.advance(2)
    got = engine.dump()
    for m in range(3):
        hyper = {name: values[m] for name, values in ensemble.hyperparameters.items()}
        state = [{name: array[m].copy() for name, array in arrays_of(start, p).items()} for p in STATE]
        loss = 0.0
        for n in range(2):
            loss += reference.loss(state[0], *batch_of(problem, n)[:2], placement, hyper["rms_epsilon"])
            g = reference.gradient(state[0], *batch_of(problem, n)[:2], placement, hyper["rms_epsilon"])
            reference.train_step(state, g, n, problem.steps, hyper)
        assert np.isclose(got["loss"][m], loss, rtol=1e-7)
        for p, arrays in zip(STATE, state, strict=True):
            for name, expected in arrays.items():
                assert np.allclose(got[f"{p}.{name}"][m], expected, rtol=2e-5, atol=1e-7), (p, name)


def test_bema_weights_of_a_state():
    problem = make_problem("peri")
    ensemble = make_ensemble(problem, 2)
    engine = Definition(problem, ensemble)
    engine.advance(4)
    state = engine.dump()
    bema = weights_of(state, ensemble, "bema")
    for m in range(2):
        a = (ensemble.hyperparameters["ema_lag"][m] + 4) ** -ensemble.hyperparameters["bema_power"][m]
        expected = a * (state["theta.U"][m].astype(float) - state["theta_0.U"][m]) + state["ema.U"][m]
        assert np.allclose(bema["U"][m], expected, rtol=1e-6)


@pytest.mark.parametrize("v", [5, 11])
def test_evaluation_against_numpy(v):
    """Every state for small v; a few of the sampled prefixes for a larger one."""
    problem = make_problem("peri", v=v)
    ensemble = make_ensemble(problem, 2)
    engine = Definition(problem, ensemble, dtype="float64")
    theta = arrays_of(moved(problem, ensemble), "theta")
    validation = problem.task.validation(0, "report")
    got = engine.measure(theta, validation)["tvd"]
    rows, ends = np.nonzero(validation.scored_NxL)
    assert got.shape == (2, len(rows))
    for p in range(0, len(rows), 1 + len(rows) // 60):
        tokens = validation.inputs_NxL[rows[p], : ends[p] + 1]
        for m in range(2):
            one = {name: array[m] for name, array in theta.items()}
            z = reference.logits(one, tokens, "peri", ensemble.hyperparameters["rms_epsilon"][m])
            probability = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
            p_star = np.array([0 if t in tokens else 1 / (v - len(tokens)) for t in range(v)])
            assert np.isclose(got[m, p], 0.5 * np.abs(probability - p_star).sum(), atol=1e-6)


def test_draws_of_two_groups_are_refused():
    problem = make_problem("pre")
    with pytest.raises(ValueError, match="one group of sixteen"):
        Ensemble(np.array([15, 16]), make_ensemble(problem, 2).hyperparameters)
