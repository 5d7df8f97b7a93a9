"""The native engine against the torch engine, and its own promises: bits that depend on nothing but the draw."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from resharpen.engines.base import Ensemble, Problem, part, weights_of
from resharpen.engines.native import NativeEngine, library, supports
from resharpen.engines.native.engine import sample
from resharpen.engines.torch_engine import TorchEngine
from resharpen.models import PLACEMENTS, Minimal, Placement
from resharpen.optim.hyperparameters import TABLE, draw, narrowed
from resharpen.tasks import SetComplement

BENIGN = {"rms_epsilon": (1e-6, 1e-4), "adam_epsilon": 1e-4, "peak_learning_rate": (1e-4, 1e-3)}
"""AdamW divides by the size of a gradient; where that is rounding error, so is the quotient. Not here."""
ODD = Placement(embedding_out=True, residual=True, unembedding_in=True)
"""A placement that nobody named: both norms after the residual."""


def problem_of(placement, v=9, s=8, batch=16, steps=100, **sizes) -> Problem:
    placement = PLACEMENTS[placement] if isinstance(placement, str) else placement
    model = replace(Minimal.smallest(v), **sizes)
    return Problem(SetComplement(v), model, placement, s, batch, steps, seed=0, setting=f"sct-v{v}-s{s}")


def ensemble_of(problem, draws=range(16), **rows) -> Ensemble:
    draws = np.array(draws)
    table = {**TABLE, **{name: narrowed(name, value) for name, value in rows.items()}}
    return Ensemble(draws, draw(table, problem.seed, problem.setting, draws))


def same(a, b, models=slice(None)):
    return all(np.array_equal(a[name][models] if name != "step" else a[name], b[name]) for name in b)


@pytest.fixture(scope="session", autouse=True)
def kernels(tmp_path_factory):
    """Everything that the fast tests need, built in parallel before the first of them."""
    sizes = [(4, 3, 1, 3), (9, 8, 1, 8), (5, 6, 2, 4), (12, 5, 3, 4)]
    wanted = [(size, "native") for size in sizes] + [(sizes[1], march) for march in ("x86-64-v3", "x86-64")]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda job: library.minimal(*job[0], job[1]), wanted))


# ---- parity: at most four times as far from torch in float64 as torch in float32 is ----


def distance(got, exact):
    """Root mean square over the models of |got - exact| / |exact|; at least half a unit in the last place."""
    got, exact = (x.reshape(len(x), -1).astype(np.float64) for x in (got, exact))
    size = np.linalg.norm(exact, axis=1)
    there = size > 0
    relative = np.linalg.norm(got - exact, axis=1)[there] / size[there]
    return max(2.0**-24, np.sqrt(np.mean(relative**2)) if there.any() else 0.0)


def assert_parity(problem, ensemble, march="native"):
    exact, single = TorchEngine(problem, ensemble, "float64"), TorchEngine(problem, ensemble)
    native = NativeEngine(problem, ensemble, march=march)
    validation = problem.task.validation(0, "selection")
    done = 0
    for steps in (1, 10, 100):
        batches = [problem.minibatch(ensemble.group, step) for step in range(done, steps)]
        states = []
        for engine in (exact, single, native):
            engine.advance(steps - done, batches)
            state = engine.dump()
            states.append(state | {"tvd.train": engine.evaluate(weights_of(state, ensemble, "train"), validation)})
        done = steps
        names = [name for name in states[0] if "." in name]
        assert names
        for name in names:
            torch_distance, native_distance = (distance(state[name], states[0][name]) for state in states[1:])
            assert native_distance <= 4 * torch_distance, f"{name} after {steps} steps"


@pytest.mark.parametrize(("v", "s"), [(4, 3), (9, 8), (9, 2)])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_parity(placement, v, s):
    problem = problem_of(placement, v, s)
    assert_parity(problem, ensemble_of(problem, **BENIGN))


@pytest.mark.slow
@pytest.mark.parametrize(("v", "s"), [(16, 8), (25, 8), (16, 2), (25, 2)])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_parity_at_larger_v(placement, v, s):
    problem = problem_of(placement, v, s)
    assert_parity(problem, ensemble_of(problem, **BENIGN))


def test_parity_with_two_norms_on_the_residual():
    problem = problem_of(ODD, 9, 8)
    assert_parity(problem, ensemble_of(problem, **BENIGN))


@pytest.mark.parametrize("sizes", [(5, 6, 2, 4), (12, 5, 3, 4)])
def test_parity_at_free_sizes(sizes):
    v, d, d_k, d_v = sizes
    problem = problem_of("peri", v, 4, d=d, d_k=d_k, d_v=d_v)
    assert_parity(problem, ensemble_of(problem, **BENIGN))


@pytest.mark.parametrize("march", ["x86-64-v3", "x86-64"])
def test_parity_on_older_instruction_sets(march):
    problem = problem_of("peri")
    assert_parity(problem, ensemble_of(problem, **BENIGN), march)


@pytest.mark.parametrize("placement", ["peri", "none", "out"])
@pytest.mark.parametrize("s", [8, 3])
def test_attention_logits_far_apart(placement, s):
    """Logits that span hundreds: a maximum over all tokens would leave nothing of a set of small ones.

    Where attention is all on one token its gradient is a difference of equals, and both engines lose digits.
    """
    problem = problem_of(placement, 9, s)
    ensemble = ensemble_of(problem, **BENIGN)
    state = TorchEngine(problem, ensemble, "float64").dump()
    spread = np.where(np.arange(16) % 2, 30.0, 1.0)[:, None, None]  # every other model, beside ordinary neighbours
    for name in ("E", "W_Q", "W_K", "W_V", "W_O", "U"):
        scale = spread if name in ("W_Q", "W_K") else 1.0
        state[f"theta.{name}"] = 20 * scale * state[f"theta.{name}"].astype(np.float32)
    engines = [
        TorchEngine(problem, ensemble, "float64"),
        TorchEngine(problem, ensemble),
        NativeEngine(problem, ensemble),
    ]
    after = []
    for engine in engines:
        engine.load(state)
        engine.advance(1)
        after.append(engine.dump())
    for name in (name for name in after[0] if name.startswith(("m.", "theta."))):
        torch_distance, native_distance = (distance(dump[name], after[0][name]) for dump in after[1:])
        assert native_distance <= max(1e-5, 4 * torch_distance), name
    narrow = NativeEngine(
        problem, Ensemble(ensemble.draw_M[::2], {k: x[::2] for k, x in ensemble.hyperparameters.items()})
    )
    narrow.load({name: array if name == "step" else array[::2] for name, array in state.items()})
    narrow.advance(1)
    assert same(after[2], narrow.dump(), slice(None, None, 2))


# ---- the same streams as in NumPy ----


@pytest.mark.parametrize(("v", "s", "batch"), [(4, 3, 7), (9, 1, 256), (9, 8, 256), (12, 4, 33)])
def test_batches_are_those_of_numpy(v, s, batch):
    problem = problem_of("peri", v, s, batch, **({"d": 5, "d_k": 3, "d_v": 4} if v == 12 else {}))
    for group, step in ((0, 0), (3, 17), (2**20, 2**31 + 5)):
        tokens = sample(problem, group, step)
        inputs, targets = problem.minibatch(group, step)
        assert np.array_equal(tokens[:, :-1], inputs)
        assert np.array_equal(tokens[:, 1:], targets)


def test_own_batches_and_given_ones_give_the_same_bits():
    problem = problem_of("peri")
    ensemble = ensemble_of(problem)
    own, given = NativeEngine(problem, ensemble), NativeEngine(problem, ensemble)
    own.advance(20)
    given.advance(20, [problem.minibatch(0, step) for step in range(20)])
    assert same(own.dump(), given.dump())


def test_initial_weights_are_those_of_torch():
    problem = problem_of("peri-init")
    ensemble = ensemble_of(problem, range(16, 32))
    assert same(NativeEngine(problem, ensemble).dump(), TorchEngine(problem, ensemble).dump())


@pytest.mark.parametrize("s", [2, 8])
def test_merging_prefixes_changes_nothing_but_rounding(s):
    problem = problem_of("peri", 9, s)
    ensemble = ensemble_of(problem, **BENIGN)
    exact, merged, apart = (
        TorchEngine(problem, ensemble, "float64"),
        NativeEngine(problem, ensemble),
        NativeEngine(problem, ensemble, merge=False),
    )
    for engine in (exact, merged, apart):
        engine.advance(10)
    states = [engine.dump() for engine in (exact, merged, apart)]
    for name in part(states[0], "theta"):
        assert distance(states[1][f"theta.{name}"], states[0][f"theta.{name}"]) < 2e-6
        assert distance(states[2][f"theta.{name}"], states[0][f"theta.{name}"]) < 2e-6


# ---- bits that depend on nothing but the draw ----


@pytest.mark.parametrize(("placement", "v", "s"), [("peri", 9, 8), ("post", 9, 2), ("none", 4, 3)])
def test_resume_is_exact(placement, v, s):
    problem = problem_of(placement, v, s)
    ensemble = ensemble_of(problem)
    straight, first = NativeEngine(problem, ensemble), NativeEngine(problem, ensemble)
    straight.advance(100)
    first.advance(37)
    second = NativeEngine(problem, ensemble)
    second.load(first.dump())
    second.advance(63)
    assert same(straight.dump(), second.dump())


def test_long_calls_are_cut_without_a_trace(monkeypatch):
    problem = problem_of("peri", 4, 3, steps=200)
    ensemble = ensemble_of(problem)
    whole, cut = NativeEngine(problem, ensemble), NativeEngine(problem, ensemble)
    whole.advance(150)
    monkeypatch.setattr("resharpen.engines.native.engine.STEPS_AT_ONCE", 40)
    cut.advance(150)
    assert same(whole.dump(), cut.dump())


@pytest.mark.parametrize("draws", [[0, 1, 2], [5], [3, 9, 14]])
def test_part_of_a_group_has_the_bits_of_the_whole(draws):
    problem = problem_of("peri")
    group, few = ensemble_of(problem), ensemble_of(problem, draws)
    whole, some = NativeEngine(problem, group), NativeEngine(problem, few)
    for engine in (whole, some):
        engine.advance(50)
    assert same(whole.dump(), some.dump(), draws)
    validation = problem.task.validation(0, "selection")
    all_tvd, some_tvd = (
        engine.evaluate(weights_of(engine.dump(), engine.ensemble, "bema"), validation) for engine in (whole, some)
    )
    assert np.array_equal(all_tvd[draws], some_tvd)


def test_training_leaves_what_numpy_makes_of_subnormal_numbers():
    problem = problem_of("peri", 4, 3)
    NativeEngine(problem, ensemble_of(problem)).advance(2)
    assert np.float32(1e-20) * np.float32(1e-20) > 0


# ---- divergence ----


def assert_one_diverges(problem, ensemble, start, lane):
    healthy, native, torch_engine = (
        NativeEngine(problem, ensemble_of(problem)),
        NativeEngine(problem, ensemble),
        TorchEngine(problem, ensemble),
    )
    for engine in (native, torch_engine):
        if start is not None:
            engine.load(start)
    for engine in (healthy, native, torch_engine):
        engine.advance(20)
    got, expected = native.dump(), torch_engine.dump()
    others = np.arange(16) != lane
    assert got["diverged_at"][lane] >= 0
    assert np.array_equal(got["diverged_at"], expected["diverged_at"])
    reference = healthy.dump()
    assert all(np.array_equal(got[name][others], reference[name][others]) for name in got if name != "step")
    return got


@pytest.mark.parametrize("placement", ["peri", "none"])
def test_a_poisoned_model_is_frozen_and_its_neighbours_do_not_notice(placement):
    problem = problem_of(placement)
    ensemble = ensemble_of(problem)
    start = NativeEngine(problem, ensemble).dump()
    start["theta.W_V"][6, 2, 3] = np.nan
    got = assert_one_diverges(problem, ensemble, start, 6)
    for name in part(start, "theta"):
        for kind in ("theta", "m", "v", "ema"):
            assert np.array_equal(got[f"{kind}.{name}"][6], start[f"{kind}.{name}"][6], equal_nan=True)


@pytest.mark.parametrize("placement", ["peri", "post", "none", "out"])
@pytest.mark.parametrize("rate", [1e15, 1e39])
def test_a_wild_learning_rate_diverges_where_torch_says(placement, rate):
    problem = problem_of(placement)
    ensemble = ensemble_of(problem)
    hyper = {name: values.copy() for name, values in ensemble.hyperparameters.items()}
    hyper["peak_learning_rate"][11], hyper["warmup_steps"][11], hyper["weight_decay"][11] = rate, 0, 1.0
    with np.errstate(over="ignore"):
        assert_one_diverges(problem, Ensemble(ensemble.draw_M, hyper), None, 11)


# ---- training, whole ----


@pytest.mark.slow
def test_training_distributions_agree():
    """64 draws, 2,000 steps: the median score of each engine is inside the other's spread of medians."""
    problem = problem_of("peri", 9, 4, batch=64, steps=2000)
    validation = problem.task.validation(0, "selection")

    def scores(kind):
        found = []
        for group in range(4):
            engine = kind(problem, ensemble_of(problem, range(16 * group, 16 * group + 16)))
            engine.advance(problem.steps)
            found.append(engine.evaluate(weights_of(engine.dump(), engine.ensemble, "bema"), validation).mean(1))
        return np.concatenate(found)

    native, torch_scores = scores(NativeEngine), scores(TorchEngine)
    rng = np.random.default_rng(0)
    gaps = native - torch_scores
    medians = np.median(gaps[rng.integers(0, 64, (1000, 64))], axis=1)
    assert np.quantile(medians, 0.005) <= 1e-3
    assert np.quantile(medians, 0.995) >= -1e-3
    assert abs(np.median(native) - np.median(torch_scores)) < 0.01


# ---- refusals ----


def test_says_what_it_cannot_run():
    problem = problem_of("peri")
    assert supports(problem) == ""
    assert "32 bits" in supports(replace(problem, task=SetComplement(33)))
    assert "65,535" in supports(replace(problem, batch=2**16))
    with pytest.raises(ValueError, match="32 bits"):
        NativeEngine(replace(problem, task=SetComplement(33)), ensemble_of(problem))


def test_repeated_tokens_are_refused():
    problem = problem_of("peri")
    engine = NativeEngine(problem, ensemble_of(problem))
    with pytest.raises(ValueError, match="distinct"):
        engine.advance(1, [(np.array([[1, 2, 1]]), np.array([[2, 1, 3]]))])
