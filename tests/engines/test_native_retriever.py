"""The native retriever against the torch engine and the formula as printed, and its own promises."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import retriever_reference as reference
from scipy.special import erf, ndtr

from resharpen.engines.base import Ensemble, Problem, initial_state, part, weights_of
from resharpen.engines.native import retriever as native
from resharpen.engines.native.retriever import NativeRetriever
from resharpen.engines.torch_engine import TorchEngine
from resharpen.models import Minimal
from resharpen.models.retriever import RETRIEVER_PLACEMENTS, Retriever
from resharpen.optim.hyperparameters import TABLE, draw, narrowed
from resharpen.tasks import SetComplement
from resharpen.tasks.max_retrieval import MaxRetrieval

PLACEMENTS = tuple(RETRIEVER_PLACEMENTS)


@pytest.fixture(scope="module", autouse=True)
def kernels():
    """Everything that the fast tests need, built in parallel before the first of them."""
    wanted = [(16, "native"), (32, "native"), (128, "native"), (16, "x86-64-v3"), (16, "x86-64")]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda job: native.kernel(job[0], 10, job[1]), wanted))


def problem_of(placement, hidden=32, batch=37, steps=100) -> Problem:
    setting = f"max-h{hidden}"
    return Problem(MaxRetrieval(), Retriever(hidden), RETRIEVER_PLACEMENTS[placement], 16, batch, steps, 3, setting)


def ensemble_of(problem, draws=range(3), **rows) -> Ensemble:
    draws = np.array(draws)
    table = {**TABLE, **{name: narrowed(name, value) for name, value in rows.items()}}
    return Ensemble(draws, draw(table, problem.seed, problem.setting, draws))


def moved(problem, ensemble, scale=0.5, seed=1):
    """A state whose weights are far from zero, so that norms, attention and softmax are all at work."""
    rng, state = np.random.default_rng(seed), initial_state(problem, ensemble)
    for name, x in part(state, "theta").items():
        size = scale * (len(x[0]) / 4) ** -0.5 if x.ndim == 3 else scale
        around = 1.0 if name.startswith("g_") else 0.0
        state[f"theta.{name}"] = (around + size * rng.standard_normal(x.shape)).astype(np.float32)
        state[f"ema.{name}"] = state[f"theta_0.{name}"] = state[f"theta.{name}"].copy()
    return state


def assert_same(a, b):
    assert set(a) == set(b)
    for name in a:
        assert np.array_equal(a[name], b[name], equal_nan=True), name


# ---- parity: at most four times as far from torch in float64 as torch in float32 is ----------------------------------


def distance(got, exact):
    """Root mean square over the models of |got - exact| / |exact|; at least half a unit in the last place."""
    got, exact = (x.reshape(len(x), -1).astype(np.float64) for x in (got, exact))
    size = np.linalg.norm(exact, axis=1)
    there = size > 0
    relative = np.linalg.norm(got - exact, axis=1)[there] / size[there]
    return max(2.0**-24, np.sqrt(np.mean(relative**2)) if there.any() else 0.0)


def assert_parity(problem, ensemble, steps=(1, 10, 100), start=None, **options):
    exact, single = TorchEngine(problem, ensemble, "float64"), TorchEngine(problem, ensemble)
    engines = exact, single, NativeRetriever(problem, ensemble, **options)
    done = 0
    if start is not None:
        for engine in engines:
            engine.load(start)
    for n in steps:
        batches = [problem.minibatch(ensemble.group, step) for step in range(done, n)]
        states = []
        for engine in engines:
            engine.advance(n - done, batches)
            states.append(engine.dump())
        done = n
        assert all((state["diverged_at"] == -1).all() for state in states)
        for name in (name for name in states[0] if "." in name):
            torch_distance, native_distance = (distance(state[name], states[0][name]) for state in states[1:])
            assert native_distance <= 4 * torch_distance, f"{name} after {n} steps"


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_parity_from_the_start(placement):
    problem = problem_of(placement)
    assert_parity(problem, ensemble_of(problem))


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_parity_in_the_middle(placement):
    problem = problem_of(placement)
    ensemble = ensemble_of(problem, peak_learning_rate=(1e-4, 1e-3))
    assert_parity(problem, ensemble, start=moved(problem, ensemble))


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_parity_at_full_size(placement):
    problem = problem_of(placement, hidden=128, batch=128)
    ensemble = ensemble_of(problem, range(2))
    assert_parity(problem, ensemble, steps=(1, 10))


@pytest.mark.slow
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_parity_at_full_size_for_long(placement):
    problem = problem_of(placement, hidden=128, batch=128)
    assert_parity(problem, ensemble_of(problem, range(4)))


@pytest.mark.parametrize("march", ["x86-64-v3", "x86-64"])
@pytest.mark.parametrize("placement", ["none", "peri"])
def test_parity_on_other_instruction_sets(placement, march):
    problem = problem_of(placement, hidden=16)
    assert_parity(problem, ensemble_of(problem), march=march)


# ---- against the formula as printed ----------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_answers_and_attention_as_printed(placement):
    """Also across blocks of items: 128 items in one sequence are more than the kernel takes at a time."""
    problem = problem_of(placement, hidden=16)
    ensemble = ensemble_of(problem, range(2))
    theta = part(moved(problem, ensemble, scale=1.5), "theta")
    validation = problem.task.validation(0, "selection", longest=128, sequences=4)
    engine = NativeRetriever(problem, ensemble)
    correct, (entropy, largest) = engine.evaluate(theta, validation), engine.attention(theta, validation)
    assert correct.shape == entropy.shape == (2, 16)
    for p, (priority, kinds, length, label) in enumerate(zip(*problem.task.examples(validation), strict=True)):
        for m in range(2):
            one = {name: x[m].astype(np.float64) for name, x in theta.items()}
            epsilon = ensemble.hyperparameters["rms_epsilon"][m]
            w, z = reference.attention_and_logits(one, priority[:length], kinds[:length], placement, epsilon)
            assert correct[m, p] == (z.argmax() == label)
            assert np.isclose(entropy[m, p], reference.entropy(w), rtol=1e-4, atol=1e-5)
            assert np.isclose(largest[m, p], w.max(), rtol=1e-4)
    assert 0 < correct.sum() < correct.size


@pytest.mark.parametrize("placement", ["none", "peri"])
@pytest.mark.parametrize("remedy", ["adaptive-temperature", "log-n"])
def test_remedies_in_evaluation(placement, remedy):
    problem = problem_of(placement, hidden=16)
    ensemble = ensemble_of(problem, range(1))
    theta = part(moved(problem, ensemble, scale=1.0), "theta")
    validation = problem.task.validation(0, "selection", longest=128, sequences=3)
    entropy, largest = NativeRetriever(problem, ensemble).attention(theta, validation, remedy=remedy)

    def factor(e):
        if remedy == "log-n":
            return np.log(len(e))
        h = reference.entropy(np.exp(e - e.max()) / np.exp(e - e.max()).sum())
        return max(1.0, np.polyval([-0.037, 0.481, -2.3, 4.917, -1.791], h)) if h > 0.5 else 1.0

    one = {name: x[0].astype(np.float64) for name, x in theta.items()}
    for p, (priority, kinds, length, _) in enumerate(zip(*problem.task.examples(validation), strict=True)):
        epsilon = ensemble.hyperparameters["rms_epsilon"][0]
        w, _ = reference.attention_and_logits(one, priority[:length], kinds[:length], placement, epsilon, factor)
        assert np.isclose(entropy[0, p], reference.entropy(w), rtol=2e-4, atol=1e-5)
        assert np.isclose(largest[0, p], w.max(), rtol=2e-4)


@pytest.mark.parametrize("placement", ["none", "peri"])
def test_log_n_in_training(placement):
    problem = problem_of(placement, hidden=16)
    ensemble = ensemble_of(problem, peak_learning_rate=1e-3)
    start, with_remedy = moved(problem, ensemble), replace(problem, attention="log-n")
    engines = TorchEngine(with_remedy, ensemble, "float64"), NativeRetriever(with_remedy, ensemble)
    plain = NativeRetriever(problem, ensemble)
    for engine in (*engines, plain):
        engine.load(start)
        engine.advance(2)
    exact, got = (engine.dump() for engine in engines)
    for name in part(exact, "m"):
        assert distance(got[f"m.{name}"], exact[f"m.{name}"]) < 2e-5, name
    assert distance(plain.dump()["m.q"], exact["m.q"]) > 1e-2


def test_gelu_and_its_slope():
    x = np.concatenate([np.linspace(-15, 15, 100_000), 10.0 ** np.linspace(-30, 4, 4000), [0, -0.0, -1e30, 1e30]])
    x = np.resize(x.astype(np.float32), -(-len(x) // 16) * 16)
    y, slope = np.empty_like(x), np.empty_like(x)
    native.kernel(16, 10).gelu_of(len(x), x.ctypes.data, y.ctypes.data, slope.ctypes.data)
    x = x.astype(np.float64)
    exact = x * ndtr(x)
    assert np.allclose(exact, 0.5 * x * (1 + erf(x / np.sqrt(2))), rtol=1e-9, atol=1e-12)
    exact_slope = ndtr(x) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)
    unit = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    units = np.abs(y - exact) / np.maximum(unit, 2.0**-126)  # below the smallest normal number there is only zero
    assert (units <= 4 + np.where(x < 0, x * x, 0)).all()
    assert (np.abs(slope - exact_slope) <= 2.0**-22).all()


# ---- promises --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "length"), [(128, 16), (7, 5), (33, 29)])
def test_minibatches_have_the_same_bits_as_in_python(batch, length):
    problem = Problem(MaxRetrieval(), Retriever(16), RETRIEVER_PLACEMENTS["none"], length, batch, 1, 0, "max")
    for group, step in ((0, 0), (3, 99_999), (70_000, 2**20)):
        for got, expected in zip(native.sample(problem, group, step), problem.minibatch(group, step), strict=True):
            assert np.array_equal(got, expected)


def test_own_and_given_minibatches_are_the_same():
    problem = problem_of("peri", hidden=16)
    ensemble = ensemble_of(problem, range(16, 19))
    own, given = NativeRetriever(problem, ensemble), NativeRetriever(problem, ensemble)
    own.advance(5)
    given.advance(5, [problem.minibatch(1, step) for step in range(5)])
    assert_same(own.dump(), given.dump())


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_resume_is_bit_exact(placement):
    problem = problem_of(placement, hidden=16)
    ensemble = ensemble_of(problem)
    whole, first, second = (NativeRetriever(problem, ensemble) for _ in range(3))
    whole.advance(70)
    first.advance(31)
    second.load(first.dump())
    second.advance(39)
    assert_same(whole.dump(), second.dump())


def test_a_model_does_not_depend_on_its_neighbours():
    problem = problem_of("pre", hidden=16)
    everyone, some = (NativeRetriever(problem, ensemble_of(problem, draws)) for draws in (range(16), (2, 9)))
    everyone.advance(20)
    some.advance(20)
    expected = everyone.dump()
    for name, x in some.dump().items():
        assert np.array_equal(x, expected[name] if name == "step" else expected[name][[2, 9]]), name


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["W_1", "W_2", "K", "V", "W_4", "b_3", "q"])
def test_poison_stays_in_its_model(poison, name):
    problem = problem_of("peri", hidden=16)
    ensemble = ensemble_of(problem)
    clean, poisoned = NativeRetriever(problem, ensemble), NativeRetriever(problem, ensemble)
    clean.advance(3)
    state = clean.dump()
    state[f"theta.{name}"][1].flat[0] = poison
    poisoned.load(state)
    clean.advance(4)
    poisoned.advance(4)
    a, b = clean.dump(), poisoned.dump()
    assert b["diverged_at"].tolist() == [-1, 3, -1]
    for key, x in a.items():
        if key != "step":
            assert np.array_equal(x[[0, 2]], b[key][[0, 2]]), key
            assert key == "diverged_at" or np.array_equal(b[key][1], state[key][1], equal_nan=True), key


def test_an_explosion_is_marked_and_frozen():
    problem = problem_of("none", hidden=16, steps=40)
    ensemble = ensemble_of(problem, peak_learning_rate=1e30, weight_decay=1.0, warmup_steps=0)
    engine = NativeRetriever(problem, ensemble)
    engine.advance(20)
    frozen = engine.dump()
    assert (frozen["diverged_at"] >= 0).all()
    engine.advance(5)
    assert_same({**frozen, "step": np.array([25])}, engine.dump())


def test_state_moves_between_engines():
    problem = problem_of("post", hidden=16)
    ensemble = ensemble_of(problem)
    torch_engine, engine = TorchEngine(problem, ensemble), NativeRetriever(problem, ensemble)
    torch_engine.advance(3)
    engine.load(torch_engine.dump())
    assert_same(torch_engine.dump(), engine.dump())
    validation = problem.task.validation(0, "selection", longest=64)
    for which in ("train", "bema"):
        weights = weights_of(engine.dump(), ensemble, which)
        agree = engine.evaluate(weights, validation) == torch_engine.evaluate(weights, validation)
        assert agree.mean() > 0.99


def test_weights_that_are_not_finite_have_no_score():
    problem = problem_of("peri", hidden=16)
    ensemble = ensemble_of(problem)
    theta = part(initial_state(problem, ensemble), "theta")
    theta["W_2"][1, 0, 0] = np.nan
    validation = problem.task.validation(0, "selection", longest=32, sequences=3)
    for engine in (NativeRetriever(problem, ensemble), TorchEngine(problem, ensemble)):
        found = engine.evaluate(theta, validation)
        assert np.isnan(found[1]).all()
        assert np.isfinite(found[[0, 2]]).all()


def test_an_evaluation_does_not_depend_on_its_pieces(monkeypatch):
    problem = problem_of("peri", hidden=16)
    ensemble = ensemble_of(problem)
    engine = NativeRetriever(problem, ensemble)
    theta = part(moved(problem, ensemble), "theta")
    validation = problem.task.validation(0, "report", longest=64, sequences=30)
    whole = engine.evaluate(theta, validation)
    monkeypatch.setattr(native, "ITEMS_AT_ONCE", 100)
    assert np.array_equal(whole, engine.evaluate(theta, validation))


def test_padding_never_changes_a_result():
    problem = problem_of("peri", hidden=16)
    ensemble = ensemble_of(problem)
    batches = [problem.minibatch(0, step) for step in range(2)]
    dirty = []
    for priority, kinds, lengths, labels in batches:
        padding = np.arange(16) >= lengths[:, None]
        dirty.append((np.where(padding, np.nan, priority), np.where(padding, 99, kinds), lengths, labels))
    a, b = NativeRetriever(problem, ensemble), NativeRetriever(problem, ensemble)
    a.advance(2, batches)
    b.advance(2, dirty)
    assert_same(a.dump(), b.dump())


def test_what_it_cannot_do():
    problem = problem_of("none", hidden=24)
    with pytest.raises(ValueError, match="multiples of 16"):
        NativeRetriever(problem, ensemble_of(problem))
    other = Problem(SetComplement(5), Minimal(5, 4, 1, 4), RETRIEVER_PLACEMENTS["none"], 3, 8, 9, 0, "sct")
    assert "Maximum Retrieval" in native.supports(other)
    problem = problem_of("none", hidden=16)
    ensemble = ensemble_of(problem)
    reader = NativeRetriever(replace(problem, attention="adaptive-temperature"), ensemble)
    with pytest.raises(ValueError, match="softmax or log-n"):
        reader.advance(1)
    priority, kinds, lengths, labels = problem.minibatch(0, 0)
    engine = NativeRetriever(problem, ensemble)
    for wrong in ((priority, kinds + 10, lengths, labels), (priority, kinds, lengths + 16, labels)):
        with pytest.raises(ValueError, match=r"classes are|items here"):
            engine.advance(1, [wrong])
