"""The native engine of the retriever against the formula as printed, beyond what every engine promises."""

from __future__ import annotations

import tempfile
from ctypes import CDLL, c_void_p
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import retriever_reference as reference
from helpers import (
    BENIGN,
    assert_draws_as_numpy,
    assert_same,
    make_ensemble,
    make_problem,
    moved,
    retriever_problem,
    steep,
)
from parity import assert_parity, distance
from scipy.special import erf, ndtr

from resharpen import streams
from resharpen.engines.native import build
from resharpen.engines.native import retriever as native
from resharpen.engines.native.compiler import find_compiler
from resharpen.engines.native.retriever import NativeRetriever
from resharpen.engines.torch.definition import Definition
from resharpen.engines.torch.fast import TorchEngine
from resharpen.models import RETRIEVER_PLACEMENTS, Retriever
from resharpen.state import arrays_of
from resharpen.tasks import Batch, Items, MaxRetrieval
from resharpen.tasks.max_retrieval import RetrievalSet

PLACEMENTS = tuple(RETRIEVER_PLACEMENTS)
SLOWLY = BENIGN | {"peak_learning_rate": 1e-4}


@cache
def functions():
    """Those of the kernel that only tests call, built beside it."""
    compiler, source = find_compiler(), Path(__file__).parents[2] / "retriever_functions.cpp"
    sizes = ("-DRESHARPEN_H=16", "-DRESHARPEN_C=10", f"-I{build.SOURCES}")
    with tempfile.TemporaryDirectory() as directory:
        library = build._compile((*compiler.command, *compiler.flags("native"), *sizes), source, Path(directory))
        return CDLL(str(library))


def few_sets(problem, count):
    """So many of 16, 32, 64 and 128 items."""
    key = streams.key(0, problem.task.name, "validation", "selection")
    return RetrievalSet(key, tuple((length, 0, count) for length in (16, 32, 64, 128)))


def sequences(problem, validation):
    """Priorities, classes, length and label of each."""
    items, _, truth = problem.task.examples(validation)
    return zip(*items, truth["label"], strict=True)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_parity_at_full_size(placement):
    problem = retriever_problem(placement, hidden=128, batch=128)
    ensemble = make_ensemble(problem, range(2), **BENIGN)
    assert_parity(NativeRetriever, problem, ensemble, steps=(1, 10))


@pytest.mark.slow
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_parity_at_full_size_for_long(placement):
    problem = retriever_problem(placement, hidden=128, batch=128)
    assert_parity(NativeRetriever, problem, make_ensemble(problem, range(4)))


@pytest.mark.parametrize("march", ["x86-64-v3", "x86-64"])
@pytest.mark.parametrize("placement", ["none", "peri"])
def test_parity_on_other_instruction_sets(placement, march):
    problem = replace(retriever_problem(placement, hidden=16), march=march)
    assert_parity(NativeRetriever, problem, make_ensemble(problem))
    ensemble = make_ensemble(problem, range(8), **SLOWLY)
    assert_parity(NativeRetriever, problem, ensemble, (1, 3), start=steep(problem, ensemble, 500, 500))


# ---- against the formula as printed ----------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_answers_and_attention_as_printed(placement):
    """Also across blocks of items: 128 items in one sequence are more than the kernel takes at a time."""
    problem = retriever_problem(placement, hidden=16)
    ensemble = make_ensemble(problem, range(2))
    theta = arrays_of(moved(problem, ensemble, scale=1.5), "theta")
    validation = few_sets(problem, 4)
    measured = NativeRetriever(problem, ensemble).measure(theta, validation, report=True)
    assert list(measured) == ["accuracy", "entropy", "largest_weight"]
    assert all(values.shape == (2, 16) for values in measured.values())
    correct, entropy, largest = measured.values()
    for p, (priority, kinds, length, label) in enumerate(sequences(problem, validation)):
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
@pytest.mark.parametrize(("steepest", "scale"), [(1, 1.0), (110, 0.3)])
def test_remedies_in_evaluation(placement, remedy, steepest, scale):
    """Of items on curves, and of items that are nodes themselves."""
    problem = retriever_problem(placement, hidden=32, attention=remedy)
    ensemble = make_ensemble(problem, 1)
    theta = arrays_of(steep(problem, ensemble, steepest, 1.25 * steepest, scale), "theta")
    validation = few_sets(problem, 3)
    _, entropy, largest = NativeRetriever(problem, ensemble).measure(theta, validation, report=True).values()

    def factor(e):
        if remedy == "log-n":
            return np.log(len(e))
        h = reference.entropy(np.exp(e - e.max()) / np.exp(e - e.max()).sum())
        return max(1.0, np.polyval([-0.037, 0.481, -2.3, 4.917, -1.791], h)) if h > 0.5 else 1.0

    one = {name: x[0].astype(np.float64) for name, x in theta.items()}
    for p, (priority, kinds, length, _) in enumerate(sequences(problem, validation)):
        epsilon = ensemble.hyperparameters["rms_epsilon"][0]
        w, _ = reference.attention_and_logits(one, priority[:length], kinds[:length], placement, epsilon, factor)
        assert np.isclose(entropy[0, p], reference.entropy(w), rtol=2e-4, atol=1e-5)
        assert np.isclose(largest[0, p], w.max(), rtol=2e-4)


@pytest.mark.parametrize("placement", ["none", "peri"])
def test_log_n_in_training(placement):
    problem = retriever_problem(placement, hidden=16)
    ensemble = make_ensemble(problem, peak_learning_rate=1e-3)
    start, with_remedy = moved(problem, ensemble), retriever_problem(placement, hidden=16, attention="log-n")
    engines = Definition(with_remedy, ensemble, "float64"), NativeRetriever(with_remedy, ensemble)
    plain = NativeRetriever(problem, ensemble)
    for engine in (*engines, plain):
        engine.load(start)
        engine.advance(2)
    exact, got = (engine.dump() for engine in engines)
    for name in arrays_of(exact, "m"):
        assert distance(got[f"m.{name}"], exact[f"m.{name}"]) < 2e-5, name
    assert distance(plain.dump()["m.q"], exact["m.q"]) > 1e-2


def test_gelu_and_its_slope():
    x = np.concatenate([np.linspace(-15, 15, 100_000), 10.0 ** np.linspace(-30, 4, 4000), [0, -0.0, -1e30, 1e30]])
    x = np.resize(x.astype(np.float32), -(-len(x) // 16) * 16)
    y, slope = np.empty_like(x), np.empty_like(x)
    functions().gelu_of(len(x), *(array.ctypes.data_as(c_void_p) for array in (x, y, slope)))
    x = x.astype(np.float64)
    exact = x * ndtr(x)
    assert np.allclose(exact, 0.5 * x * (1 + erf(x / np.sqrt(2))), rtol=1e-9, atol=1e-12)
    exact_slope = ndtr(x) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)
    unit = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    units = np.abs(y - exact) / np.maximum(unit, 2.0**-126)  # below the smallest normal number there is only zero
    assert (units <= 4 + np.where(x < 0, x * x, 0)).all()
    assert (np.abs(slope - exact_slope) <= 2.0**-22).all()


# ---- items from nodes ------------------------------------------------------------------------------------------------

CURVES = [0.081, 0.203, 0.391, 0.618, 0.894, 1.183, 1.505, 1.823, 2.164, 2.493, 2.839, 3.168]
"""Up to which weight of the priority the kernel knows a curve through 5, 6, ... 16 points."""
WAYS = {
    "5 points": (0.08, 0.08),
    "8 points": (0.6, 0.6),
    "16 points": (3.16, 3.16),
    "2 pieces": (6.3, 6.3),
    "4 pieces": (12.6, 12.6),
    "items in training": (40, 40),
    "items": (500, 500),
    "steep, 5 points": (500, 0.07),
    "steep, 10 points": (3.16, 1),
    "steep, 16 points": (500, 3.1),
    "steep, 2 pieces": (500, 6),
}
"""How the kernel computes, by the three largest weights of the priority and what the others are below."""
EVERY_WAY = pytest.mark.parametrize("way", WAYS)


@EVERY_WAY
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_parity_whatever_items_are_made_of(placement, way):
    """Over several blocks of sequences."""
    problem = retriever_problem(placement, hidden=32, batch=61)
    ensemble = make_ensemble(problem, range(8), **SLOWLY)
    assert_parity(NativeRetriever, problem, ensemble, (1, 3), start=steep(problem, ensemble, *WAYS[way]))


@pytest.mark.parametrize("way", ["8 points", "items", "steep, 10 points"])
@pytest.mark.parametrize("classes", [7, 16])
def test_parity_with_other_numbers_of_classes(classes, way):
    problem = retriever_problem("peri", hidden=32, task=MaxRetrieval(classes=classes), attention="ssmax")
    problem = replace(problem, model=Retriever(32, classes))
    ensemble = make_ensemble(problem, range(8), **SLOWLY)
    assert_parity(NativeRetriever, problem, ensemble, (1, 3), start=steep(problem, ensemble, *WAYS[way]))


@EVERY_WAY
@pytest.mark.parametrize("placement", ["none", "peri"])
def test_answers_whatever_items_are_made_of(placement, way):
    """With biases that make all answers about as likely, so that a wrong sum would give others."""
    problem, models = retriever_problem(placement, hidden=32), 6
    ensemble = make_ensemble(problem, range(models))
    theta = arrays_of(steep(problem, ensemble, *WAYS[way], scale=1.5), "theta")
    validation = few_sets(problem, 3)
    expected = []
    for m in range(models):
        one = {name: x[m].astype(np.float64) for name, x in theta.items()}
        epsilon = ensemble.hyperparameters["rms_epsilon"][m]
        weights, logits = zip(
            *(
                reference.attention_and_logits(one, priority[:length], kinds[:length], placement, epsilon)
                for priority, kinds, length, _ in sequences(problem, validation)
            ),
            strict=True,
        )
        middle = np.mean(logits, axis=0)
        theta["b_4"][m] -= middle.astype(np.float32)
        expected.append((weights, (np.array(logits) - middle).argmax(axis=1)))
    assert all(len(set(answer)) > 1 for _, answer in expected)
    measured = NativeRetriever(problem, ensemble).measure(theta, validation, report=True)
    label_P = [label for *_, label in sequences(problem, validation)]
    for m, (weights, answer) in enumerate(expected):
        correct, entropy, largest = (values[m] for values in measured.values())
        assert np.array_equal(correct, answer == label_P)
        assert np.allclose(entropy, [reference.entropy(w) for w in weights], rtol=2e-4, atol=2e-4)
        assert np.allclose(largest, [w.max() for w in weights], rtol=2e-4)


def points_of(n):
    """Chebyshev's, as multiples of 2^-19."""
    return np.round(2**18 * (1 - np.cos((np.arange(n) + 0.5) * np.pi / n))) / 2**19


def lagrange(x, point):
    """The polynomials themselves, in float64: [x, points]."""
    others = [[j for j in range(len(point)) if j != k] for k in range(len(point))]
    return np.stack([np.prod((x[:, None] - point[o]) / (point[k] - point[o]), axis=1) for k, o in enumerate(others)], 1)


@pytest.mark.parametrize("points", range(5, 17))
def test_shares_of_points(points):
    point = points_of(points)
    x = np.concatenate([point, np.linspace(0, 1, 5_001), np.nextafter(point.astype(np.float32), np.float32(2))])
    x = x.astype(np.float32)
    got = np.empty((len(x), 16), np.float32)
    functions().shares_of(points, len(x), *(array.ctypes.data_as(c_void_p) for array in (x, got)))
    assert np.abs(got[:, :points] - lagrange(x.astype(np.float64), point)).max() < 1e-6
    assert np.array_equal(got[:points, :points], np.eye(points))
    assert (got[:, points:] == 0).all()


@pytest.mark.parametrize("points", range(5, 17))
def test_a_curve_is_known_from_its_points(points):
    """Wherever the bend of the gelu is, and its derivative by the weight of the priority, too."""
    used = np.empty(12, np.float32)
    functions().steepest_of(used.ctypes.data_as(c_void_p))
    assert np.array_equal(used, np.array(CURVES, np.float32))
    point, x, w = points_of(points), np.linspace(0, 1, 301), CURVES[points - 5]
    shares, offset = lagrange(x, point), np.linspace(-8, 8, 161)[:, None]

    def curve_and_slope(p):
        u = offset + w * p
        return np.stack([u * ndtr(u), p * (ndtr(u) + u * np.exp(-u * u / 2) / np.sqrt(2 * np.pi))])

    error = np.abs(curve_and_slope(point) @ shares.T - curve_and_slope(x)).max(axis=(1, 2))
    assert error[0] < 2e-9
    assert error[1] < 1.01e-8


# ---- promises --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "length"), [(128, 16), (7, 5), (33, 29)])
def test_minibatches_have_the_same_bits_as_in_python(batch, length):
    problem = retriever_problem("none", 16, batch, 2**21, length)
    for group, step in ((0, 0), (3, 99_999), (70_000, 2**20)):
        assert_draws_as_numpy(NativeRetriever(problem, make_ensemble(problem, [16 * group])), step)


@pytest.mark.parametrize("where", [("W_2", 0), ("W_1", 0), ("b_4", 3)])
@pytest.mark.parametrize("way", ["5 points", "items", "steep, 5 points"])
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_have_no_score(where, way, poison):
    problem = retriever_problem("peri", hidden=32)
    ensemble = make_ensemble(problem)
    theta = arrays_of(steep(problem, ensemble, *WAYS[way]), "theta")
    name, row = where
    theta[name][1, row, ...] = poison
    validation = problem.task.validation(0, "selection")
    for engine in (NativeRetriever(problem, ensemble), TorchEngine(problem, ensemble)):
        found = engine.measure(theta, validation)["accuracy"]
        assert np.isnan(found[1]).all()
        assert np.isfinite(found[[0, 2]]).all()


def test_a_model_does_not_depend_on_how_its_neighbors_are_computed():
    problem = retriever_problem("peri", hidden=32)
    ensemble = make_ensemble(problem, range(5), **BENIGN)
    start = steep(problem, ensemble, [500, 0.08, 500, 12.6, 40], [0.07, 0.08, 500, 12.6, 3.1])
    together = NativeRetriever(problem, ensemble)
    together.load(start)
    together.advance(3)
    state, validation = together.dump(), few_sets(problem, 3)
    measured = together.measure(arrays_of(state, "theta"), validation, report=True)
    for m in range(5):
        alone = NativeRetriever(problem, make_ensemble(problem, [m], **BENIGN))
        alone.load({name: x if name == "step" else x[[m]] for name, x in start.items()})
        alone.advance(3)
        assert_same(state, alone.dump(), [m])
        for name, values in alone.measure(arrays_of(alone.dump(), "theta"), validation, report=True).items():
            assert np.array_equal(values[0], measured[name][m]), name


def test_an_evaluation_does_not_depend_on_its_pieces(monkeypatch):
    problem = retriever_problem("peri", hidden=16)
    ensemble = make_ensemble(problem)
    engine = NativeRetriever(problem, ensemble)
    theta = arrays_of(moved(problem, ensemble), "theta")
    validation = problem.task.validation(0, "report")
    whole = engine.measure(theta, validation, report=True)
    monkeypatch.setattr(native, "ITEMS_AT_ONCE", 100)
    for name, values in engine.measure(theta, validation, report=True).items():
        assert np.array_equal(whole[name], values), name


def test_padding_never_changes_a_result():
    problem = retriever_problem("peri", hidden=16)
    ensemble = make_ensemble(problem)
    batches = [problem.minibatch(0, step) for step in range(2)]
    dirty = []
    for items, labels, mask in batches:
        padding = np.arange(16) >= items.length[:, None]
        other = np.where(padding, np.nan, items.priority), np.where(padding, 99, items.kind)
        dirty.append(Batch(Items(*other, items.length), labels, mask))
    a, b = NativeRetriever(problem, ensemble), NativeRetriever(problem, ensemble)
    a.advance(2, batches)
    b.advance(2, dirty)
    assert_same(a.dump(), b.dump())


def test_what_it_cannot_do():
    problem = retriever_problem("none", hidden=24)
    with pytest.raises(ValueError, match="multiples of 16"):
        NativeRetriever(problem, make_ensemble(problem))
    assert "Maximum Retrieval" in NativeRetriever.supports(make_problem("none"))
    problem = retriever_problem("none", hidden=16)
    ensemble = make_ensemble(problem)
    reader = NativeRetriever(retriever_problem("none", 16, attention="adaptive-temperature"), ensemble)
    with pytest.raises(ValueError, match="only softmax, log-n and ssmax"):
        reader.advance(1)
    items, labels, mask = problem.minibatch(0, 0)
    engine = NativeRetriever(problem, ensemble)
    for wrong in (
        items._replace(kind=items.kind + 10),
        items._replace(length=items.length + 16),
        items._replace(priority=items.priority + 1),
    ):
        with pytest.raises(ValueError, match=r"classes are|items here|priorities are"):
            engine.advance(1, [Batch(wrong, labels, mask)])
