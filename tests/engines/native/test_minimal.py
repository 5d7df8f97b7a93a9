"""The native engine of the minimal transformer, beyond what every engine promises."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers import BENIGN, EVERYTHING, assert_draws_as_numpy, assert_same, make_ensemble, minimal_problem
from parity import assert_close, assert_parity, distance
from scipy.stats import wilcoxon

from resharpen.engines.base import Ensemble, weights_of
from resharpen.engines.native.minimal import NativeMinimal
from resharpen.engines.torch.definition import Definition
from resharpen.engines.torch.fast import TorchEngine
from resharpen.models import Minimal
from resharpen.parts import PAPER_PLACEMENTS, STUDIED_PLACEMENTS
from resharpen.tasks import Batch, SetComplement

PAIRS = Minimal(11, 9, 2, 6)
"""The smallest sizes, about, at which norms are computed without vectors."""


def check_parity(problem, **options):
    validation = problem.task.validation(0, "selection")
    assert_parity(NativeMinimal, problem, make_ensemble(problem, 16, **BENIGN), validation=validation, **options)


@pytest.mark.slow
@pytest.mark.parametrize(("v", "s"), [(16, 8), (25, 8), (16, 2), (25, 2)])
@pytest.mark.parametrize("placement", STUDIED_PLACEMENTS)
@pytest.mark.parametrize("attention", ["softmax", "log-n"])
def test_parity_at_larger_v(placement, attention, v, s):
    check_parity(minimal_problem(placement, v, s, attention=attention))


@pytest.mark.parametrize("sizes", [(5, 6, 2, 4), (12, 5, 3, 4)])
def test_parity_at_free_sizes(sizes):
    check_parity(minimal_problem("peri", sizes[0], 4, model=Minimal(*sizes)))


@pytest.mark.parametrize(
    ("placement", "attention"),
    [("all", "softmax"), *((p, a) for p in ("out", "pre-final", "peri") for a in ("softmax", "ssmax"))],
)
def test_parity_of_norms_without_vectors(placement, attention):
    """The kernel takes squares from products of the tokens' vectors; not with two norms after the residual."""
    problem = minimal_problem(EVERYTHING[placement], 11, 8, model=PAIRS, attention=attention)
    check_parity(problem, steps=(1, 10))


@pytest.mark.parametrize("march", ["x86-64-v3", "x86-64"])
def test_parity_on_older_instruction_sets(march):
    problem = replace(minimal_problem("peri"), march=march)
    check_parity(problem)
    assert f"-{march}-" in NativeMinimal(problem, make_ensemble(problem, 16)).built


@pytest.mark.parametrize("attention", ["softmax", "ssmax"])
@pytest.mark.parametrize("placement", ["peri", "none", "out"])
@pytest.mark.parametrize(
    ("v", "s", "scale"),
    [
        *((9, 8, 30), (9, 3, 30), (11, 8, 30), (12, 8, 30), (9, 8, 8), (9, 3, 8), (11, 8, 8)),
        *(pytest.param(v, 8, 30, marks=pytest.mark.slow) for v in (16, 25)),
    ],
)
def test_attention_logits_far_apart(placement, attention, v, s, scale):
    """Logits that span hundreds: a maximum over all tokens would leave nothing of a set of small ones.

    Where attention is all on one token its gradient is a difference of equals, and both engines lose digits. At the
    smaller scale they span tens: a maximum over all tokens will do, but weights round to one.
    """
    model = {11: PAIRS, 12: Minimal(12, 5, 3, 4)}.get(v)
    problem = minimal_problem(placement, v, s, model=model, attention=attention)
    ensemble = make_ensemble(problem, 16, **BENIGN)
    state = Definition(problem, ensemble, "float64").dump()
    spread = np.where(np.arange(16) % 2, scale, 1.0)[:, None, None]  # every other model, beside ordinary neighbors
    for name in ("E", "W_Q", "W_K", "W_V", "W_O", "U"):
        factor = spread if name in ("W_Q", "W_K") else 1.0
        state[f"theta.{name}"] = 20 * factor * state[f"theta.{name}"].astype(np.float32)
    engines = [
        Definition(problem, ensemble, "float64"),
        Definition(problem, ensemble),
        NativeMinimal(problem, ensemble),
    ]
    after = []
    for engine in engines:
        engine.load(state)
        engine.advance(1)
        after.append(engine.dump())
    for name in (name for name in after[0] if name.startswith(("m.", "theta."))):
        torch_distance, native_distance = (distance(dump[name], after[0][name]) for dump in after[1:])
        assert native_distance <= max(1e-5, 4 * torch_distance), name
    assert_close(after, ["loss"])
    narrow = NativeMinimal(
        problem, Ensemble(ensemble.draw_M[::2], {k: x[::2] for k, x in ensemble.hyperparameters.items()})
    )
    narrow.load({name: array if name == "step" else array[::2] for name, array in state.items()})
    narrow.advance(1)
    assert_same(after[2], narrow.dump(), slice(None, None, 2))


# ---- the same streams as in NumPy ----


@pytest.mark.parametrize(("v", "s", "batch"), [(4, 3, 7), (9, 1, 256), (9, 8, 256), (12, 4, 33)])
def test_batches_are_those_of_numpy(v, s, batch):
    problem = minimal_problem("peri", v, s, batch, steps=2**32, model=Minimal(12, 5, 3, 4) if v == 12 else None)
    for group, step in ((0, 0), (3, 17), (2**20, 2**31 + 5)):
        assert_draws_as_numpy(NativeMinimal(problem, make_ensemble(problem, [16 * group])), step)


# ---- bits that depend on nothing but the draw ----


def test_long_calls_are_cut_without_a_trace(monkeypatch):
    problem = minimal_problem("peri", 4, 3, steps=200)
    ensemble = make_ensemble(problem, 16)
    whole, cut = NativeMinimal(problem, ensemble), NativeMinimal(problem, ensemble)
    whole.advance(150)
    monkeypatch.setattr(NativeMinimal, "STEPS_AT_ONCE", 40)
    cut.advance(150)
    assert_same(whole.dump(), cut.dump())


def test_training_leaves_what_numpy_makes_of_subnormal_numbers():
    problem = minimal_problem("peri", 4, 3)
    NativeMinimal(problem, make_ensemble(problem, 16)).advance(2)
    assert np.float32(1e-20) * np.float32(1e-20) > 0


# ---- divergence ----


def assert_one_diverges(problem, ensemble, start, lane):
    healthy, native, torch_engine = (
        NativeMinimal(problem, make_ensemble(problem, 16)),
        NativeMinimal(problem, ensemble),
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


@pytest.mark.parametrize("placement", ["peri", "post", "none", "out"])
@pytest.mark.parametrize("rate", [1e15, 1e39])
def test_a_wild_learning_rate_diverges_where_torch_says(placement, rate):
    problem = minimal_problem(placement)
    ensemble = make_ensemble(problem, 16)
    hyper = {name: values.copy() for name, values in ensemble.hyperparameters.items()}
    hyper["peak_learning_rate"][11], hyper["warmup_steps"][11], hyper["weight_decay"][11] = rate, 0, 1.0
    with np.errstate(over="ignore"):
        assert_one_diverges(problem, Ensemble(ensemble.draw_M, hyper), None, 11)


# ---- training, whole ----


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
@pytest.mark.parametrize("s", range(1, 9))
@pytest.mark.parametrize("placement", PAPER_PLACEMENTS)
def test_training_distributions_agree(placement, s):
    """A cell of figure 1, 96 draws, 20,000 steps: paired by draw, neither engine scores better at the longest input.

    A minute or several each on two cores. Single models drift apart; what would show a fault is a shift.
    """
    problem = minimal_problem(placement, 9, s, batch=256, steps=20_000)
    validation = problem.task.validation(0, "selection")
    longest = validation.length_P == 8

    def scores(kind):
        found = []
        for group in range(6):
            engine = kind(problem, make_ensemble(problem, range(16 * group, 16 * group + 16)))
            engine.advance(problem.steps)
            measured = engine.measure(weights_of(engine.dump(), engine.ensemble, "train"), validation)
            found.append(measured["tvd"][:, longest].mean(1))
        return np.concatenate(found)

    gaps = scores(NativeMinimal) - scores(TorchEngine)
    assert wilcoxon(gaps).pvalue > 0.05 / 32  # cells
    assert np.median(np.abs(gaps)) < 1e-3


# ---- refusals ----


def test_says_what_it_cannot_run():
    problem = minimal_problem("peri")
    assert NativeMinimal.supports(problem) == ""
    assert "up to 32 tokens" in NativeMinimal.supports(replace(problem, task=SetComplement(33)))
    assert "65,535" in NativeMinimal.supports(replace(problem, batch=2**16))
    with pytest.raises(ValueError, match="up to 32 tokens"):
        NativeMinimal(replace(problem, task=SetComplement(33)), make_ensemble(problem, 16))


def test_repeated_tokens_are_refused():
    problem = minimal_problem("peri")
    engine = NativeMinimal(problem, make_ensemble(problem, 16))
    with pytest.raises(ValueError, match="distinct"):
        engine.advance(1, [Batch(np.array([[1, 2, 1]]), np.array([[2, 1, 3]]), np.ones((1, 3), bool))])


def test_padding_is_refused():
    problem = minimal_problem("peri")
    engine = NativeMinimal(problem, make_ensemble(problem, 16))
    with pytest.raises(ValueError, match="one length"):
        engine.advance(1, [Batch(np.array([[1, 2]]), np.array([[2, 3]]), np.array([[True, False]]))])
