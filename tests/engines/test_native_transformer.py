"""The native transformer against the torch engine, and its own promises: bits that depend on nothing but the draw."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pytest

from resharpen import streams
from resharpen.engines.base import Ensemble, Problem, part, weights_of
from resharpen.engines.native.transformer import NativeTransformer, Sampler, kernel, positions, ragged, supports
from resharpen.engines.torch_engine import TorchEngine
from resharpen.models import PLACEMENTS, Minimal, Placement
from resharpen.models.transformer import Transformer
from resharpen.optim.hyperparameters import TABLE, draw, narrowed
from resharpen.tasks.dyck import Dyck
from resharpen.tasks.language import OwnLanguage
from resharpen.tasks.tomita import Tomita

BENIGN = {"rms_epsilon": (1e-6, 1e-4), "adam_epsilon": 1e-4, "peak_learning_rate": (1e-4, 1e-3)}
"""AdamW divides by the size of a gradient; where that is rounding error, so is the quotient. Not here."""
EVERYTHING = {**PLACEMENTS, "all": Placement(*[True] * 5)}
SMALL = Transformer(6, layers=2, d=8, heads=2, d_mlp=6)
ODD = Transformer(6, layers=1, d=36, heads=1, d_mlp=50)
"""Widths above a vector, and not whole ones; a head of more than one vector."""
PAPER = Transformer(6)
OLDER = ("x86-64-v3", "x86-64")


def problem_of(placement="peri", model=SMALL, task=None, cap=37, batch=6, steps=100) -> Problem:
    placement = EVERYTHING[placement] if isinstance(placement, str) else placement
    return Problem(task or Dyck(2, 3), model, placement, cap, batch, steps, seed=3, setting="t")


def ensemble_of(problem, draws=range(3), **rows) -> Ensemble:
    draws = np.array(draws)
    table = {**TABLE, **{name: narrowed(name, value) for name, value in rows.items()}}
    return Ensemble(draws, draw(table, problem.seed, problem.setting, draws))


@pytest.fixture(scope="session", autouse=True)
def transformer_kernels():
    """What these tests need, built in parallel before the first of them."""
    wanted = [(model, "native") for model in (PAPER, SMALL, ODD)] + [(SMALL, march) for march in OLDER]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda job: kernel(*job), wanted))


def same(a, b, models=slice(None)):
    return set(a) == set(b) and all(
        np.array_equal(a[name] if name == "step" else a[name][models], b[name], equal_nan=True) for name in b
    )


# ---- parity: at most four times as far from torch in float64 as torch in float32 is ----------------------------------


def distance(got, exact):
    """Root mean square over the models of |got - exact| / |exact|; at least half a unit in the last place."""
    got, exact = (x.reshape(len(x), -1).astype(np.float64) for x in (got, exact))
    size = np.linalg.norm(exact, axis=1)
    there = size > 0
    relative = np.linalg.norm(got - exact, axis=1)[there] / size[there]
    return max(2.0**-24, np.sqrt(np.mean(relative**2)) if there.any() else 0.0)


def assert_parity(problem, batches=None, march="native", checks=(1, 10, 100)):
    ensemble = ensemble_of(problem, range(2), **BENIGN)
    engines = (
        TorchEngine(problem, ensemble, "float64"),
        TorchEngine(problem, ensemble),
        NativeTransformer(problem, ensemble, march),
    )
    validation = problem.task.validation(0, "report", 2)
    done = 0
    for steps in checks:
        given = [problem.minibatch(0, i) if batches is None else batches[i % len(batches)] for i in range(done, steps)]
        states = []
        for engine in engines:
            engine.advance(steps - done, given)
            state = engine.dump()
            states.append(state | {"score.train": engine.evaluate(weights_of(state, ensemble, "train"), validation)})
        done = steps
        names = [name for name in states[0] if "." in name]
        assert len(names) > 5
        for name in names:
            torch_distance, native_distance = (distance(state[name], states[0][name]) for state in states[1:])
            assert native_distance <= 4 * torch_distance, f"{name} after {steps} steps"


@pytest.mark.parametrize("placement", EVERYTHING)
def test_parity_of_every_placement(placement):
    assert_parity(problem_of(placement, cap=24, batch=4))


def rows_of(*lengths, seed=0):
    """A minibatch of sequences with the given lengths."""
    rng = np.random.default_rng(seed)
    shape = len(lengths), max(lengths)
    real = np.arange(shape[1]) < np.array(lengths)[:, None]
    inputs, targets = rng.integers(0, 6, shape) * real, rng.integers(0, 6, shape)
    return inputs, targets, real


BATCHES = {
    "length-1": [rows_of(1)],
    "length-1-often": [rows_of(*[1] * 5)],
    "one-sequence": [rows_of(7)],
    "around-the-vector": [rows_of(15, 16, 17), rows_of(1, 33, 31, 32)],
    "around-a-block": [rows_of(23, 24, 25), rows_of(47, 49, 48)],
    "around-a-chunk": [rows_of(127), rows_of(128, 2), rows_of(129, 3), rows_of(150, 64, 65)],
}


@pytest.mark.parametrize("lengths", BATCHES)
@pytest.mark.parametrize("model", [SMALL, ODD], ids=["small", "odd"])
def test_parity_of_odd_lengths(model, lengths):
    assert_parity(problem_of("all", model), BATCHES[lengths], checks=(1, 10))


@pytest.mark.parametrize("placement", ["none", "peri-init"])
def test_parity_of_odd_sizes(placement):
    assert_parity(problem_of(placement, ODD, cap=24, batch=4))


@pytest.mark.parametrize("placement", ["pre", "post", "peri"])
def test_parity_at_the_size_of_the_paper(placement):
    assert_parity(problem_of(placement, PAPER, batch=16), checks=(1, 10))


@pytest.mark.parametrize("march", OLDER)
def test_parity_on_older_processors(march):
    assert_parity(problem_of("all"), march=march, checks=(1, 10))


def test_gradient_far_from_the_start():
    """Large weights, so that attention is sharp and the MLP is far into its bends: m after a step is the gradient."""
    problem = problem_of("all", PAPER, batch=12)
    ensemble = ensemble_of(problem, **BENIGN, one_minus_beta1=1.0, max_gradient_norm=100.0)
    engines = (
        TorchEngine(problem, ensemble, "float64"),
        TorchEngine(problem, ensemble),
        NativeTransformer(problem, ensemble),
    )
    rng = np.random.default_rng(0)
    start = engines[0].dump()
    for name in part(start, "theta"):
        start[f"theta.{name}"] = rng.standard_normal(start[f"theta.{name}"].shape).astype(np.float32) * np.float32(0.4)
    states = []
    for engine in engines:
        engine.load(start)
        engine.advance(1)
        states.append(engine.dump())
    for name in part(start, "m"):
        torch_distance, native_distance = (distance(state[f"m.{name}"], states[0][f"m.{name}"]) for state in states[1:])
        assert native_distance <= 4 * torch_distance, name


# ---- sampling --------------------------------------------------------------------------------------------------------

COIN = OwnLanguage.from_data(
    {
        "states": {
            "even": {"t": [0.2, "even"], "h": [0.5, "odd"], "end": 0.3},
            "odd": {"t": [0.9, "odd"], "h": [0.1, "even"]},
        }
    }
)


@pytest.mark.parametrize(
    "task", [Dyck(2, 3), Dyck(8, 10), Dyck(32, 3), Tomita(3), Tomita(7), COIN], ids=lambda t: t.name
)
@pytest.mark.parametrize("cap", [1, 3, 50, 129])
def test_minibatches_are_those_of_numpy(task, cap):
    problem = problem_of(task=task, cap=cap, batch=9)
    inputs, targets, lengths = Sampler(kernel(SMALL), task.automaton)(problem, group=5, first=11, n=3)
    for step, length_N in enumerate(lengths):
        expected = ragged(problem.minibatch(5, 11 + step))
        n = int(length_N.sum())
        assert (length_N == expected[2][0]).all()
        assert (inputs[:n] == expected[0]).all()
        assert (targets[:n] == expected[1]).all()
        inputs, targets = inputs[n:], targets[n:]
    assert len(inputs) == 0


def test_own_minibatches_and_given_ones_give_the_same_bits():
    problem = problem_of()
    ensemble = ensemble_of(problem)
    own, given = NativeTransformer(problem, ensemble), NativeTransformer(problem, ensemble)
    own.advance(20)
    given.advance(20, [problem.minibatch(0, step) for step in range(20)])
    assert same(own.dump(), given.dump())


@dataclass(frozen=True)
class Repeat:
    """A task without an automaton: a token, again and again."""

    vocabulary: int = 6

    def batch(self, key, group, step, n, train_length):
        words = streams.words(key, n, group, step)
        tokens = np.repeat(streams.below(words, self.vocabulary)[:, None], train_length, axis=1)
        return tokens, tokens, np.ones(tokens.shape, bool)


def test_a_python_task_trains_on_both_engines():
    problem = problem_of(task=Repeat(), cap=5)
    ensemble = ensemble_of(problem, **BENIGN)
    native, torch = NativeTransformer(problem, ensemble), TorchEngine(problem, ensemble)
    for engine in (native, torch):
        engine.advance(20)
    a, b = native.dump(), torch.dump()
    assert all(np.allclose(a[name], b[name], rtol=1e-3, atol=1e-5) for name in b)


# ---- bits ------------------------------------------------------------------------------------------------------------


def test_chunks_and_a_round_trip_do_not_change_bits():
    problem = problem_of()
    ensemble = ensemble_of(problem)
    whole, resumed = NativeTransformer(problem, ensemble), NativeTransformer(problem, ensemble)
    whole.advance(40)
    resumed.advance(17)
    saved = resumed.dump()
    resumed.advance(3)  # to be forgotten
    again = NativeTransformer(problem, ensemble)
    again.load(saved)
    again.advance(23)
    assert same(whole.dump(), again.dump())


def test_a_model_does_not_depend_on_its_neighbours():
    problem = problem_of("peri-init")
    whole, some = (NativeTransformer(problem, ensemble_of(problem, draws)) for draws in (range(16), (3, 14)))
    for engine in (whole, some):
        engine.advance(5)
    assert same(whole.dump(), some.dump(), [3, 14])


def test_not_a_number_stays_with_its_model():
    problem = problem_of("peri")
    ensemble = ensemble_of(problem, range(5))
    clean, poisoned = NativeTransformer(problem, ensemble), NativeTransformer(problem, ensemble)
    for engine in (clean, poisoned):
        engine.advance(3)
    state = poisoned.dump()
    state["theta.1.mlp.W_1"][2, 0, 0] = np.nan
    poisoned.load(state)
    for engine in (clean, poisoned):
        engine.advance(6)
    a, b = clean.dump(), poisoned.dump()
    others = [0, 1, 3, 4]
    assert same(a, {name: array if name == "step" else array[others] for name, array in b.items()}, others)
    assert b["diverged_at"].tolist() == [-1, -1, 3, -1, -1]
    for name, array in state.items():
        if name not in ("step", "diverged_at"):
            assert np.array_equal(b[name][2], array[2], equal_nan=True), name
    validation = problem.task.validation(0, "selection", 4)
    values = poisoned.evaluate(part(b, "theta"), validation)
    assert np.isnan(values[2]).all()
    assert np.array_equal(values[others], clean.evaluate(part(a, "theta"), validation)[others])


def test_an_explosion_is_marked_as_by_torch():
    problem = problem_of("none")
    ensemble = ensemble_of(problem, peak_learning_rate=1e30, weight_decay=1.0, warmup_steps=0)
    native, torch = NativeTransformer(problem, ensemble), TorchEngine(problem, ensemble)
    for engine in (native, torch):
        engine.advance(20)
    at = native.dump()["diverged_at"]
    assert (at >= 0).all()
    assert (at == torch.dump()["diverged_at"]).all()
    frozen = native.dump()
    native.advance(5)
    after = native.dump()
    assert after["step"] == 25
    assert same({k: v for k, v in frozen.items() if k != "step"}, {k: v for k, v in after.items() if k != "step"})


def test_padding_stays_zero():
    problem = problem_of("all", ODD)
    engine = NativeTransformer(problem, ensemble_of(problem))
    engine.advance(30)
    used = np.concatenate([p.ravel() for p in positions(ODD, list(ODD.gains(problem.placement))).values()])
    assert len(np.unique(used)) == len(used)
    padding = np.delete(engine._state_MxPartsxX, used, axis=2)
    assert padding.shape[2] > 0
    assert (padding == 0).all()


def test_either_engine_opens_the_state_of_the_other():
    problem = problem_of("all", ODD)
    ensemble = ensemble_of(problem)
    native, torch = NativeTransformer(problem, ensemble), TorchEngine(problem, ensemble)
    native.advance(3)
    torch.load(native.dump())
    assert same(native.dump(), torch.dump())
    back = NativeTransformer(problem, ensemble)
    back.load(torch.dump())
    assert same(back.dump(), native.dump())


# ---- evaluation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", ["all", "none"])
def test_scores_do_not_depend_on_what_is_scored_beside_them(placement):
    """Only scored positions pass through the last layer: the same numbers as when all do."""
    problem = problem_of(placement)
    engine = NativeTransformer(problem, ensemble_of(problem))
    engine.advance(5)
    weights = part(engine.dump(), "theta")
    prefixes = problem.task.validation(0, "selection", 5).bin(63)
    some = engine.evaluate(weights, prefixes)
    every = replace(prefixes, scored_NxL=np.arange(63) < prefixes.scored_NxL.cumsum(1).argmax(1)[:, None] + 1)
    assert every.scored_NxL.sum() > prefixes.scored_NxL.sum()
    picked = engine.evaluate(weights, every)[:, prefixes.scored_NxL[every.scored_NxL]]
    assert np.allclose(some, picked, rtol=1e-5, atol=1e-6)


def test_bad_input():
    problem = problem_of()
    engine = NativeTransformer(problem, ensemble_of(problem))
    inputs, targets, real = rows_of(4, 4)
    with pytest.raises(ValueError, match="padding is at the end"):
        engine.advance(1, [(inputs, targets, real ^ (np.arange(4) == 1))])
    with pytest.raises(ValueError, match="vocabulary of 6"):
        engine.advance(1, [(inputs + 6, targets, real)])
    assert "knows the transformer" in supports(replace(problem, model=Minimal.smallest(6)))
    assert "knows softmax" in supports(replace(problem, attention="log-n"))
    with pytest.raises(ValueError, match="knows softmax"):
        NativeTransformer(replace(problem, attention="log-n"), ensemble_of(problem))
