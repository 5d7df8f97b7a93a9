"""The fast engine against its definition, with every part that fits a model; and what is compiled."""

from functools import partial

import numpy as np
import pytest
import torch
from helpers import make_ensemble, make_problem, minimal_problem, moved, retriever_problem, transformer_problem

import resharpen as rs
from resharpen.engines.base import arrays_of
from resharpen.engines.torch import fast
from resharpen.engines.torch.definition import Definition
from resharpen.engines.torch.fast import FLAT, TorchEngine
from resharpen.models import MODELS, Minimal, Transformer
from resharpen.models.model import Misfit
from resharpen.optim import OPTIMIZERS
from resharpen.parts import ATTENTIONS, DROPOUTS, NORMS, PLACEMENTS, POSITIONS, SITES
from resharpen.tasks import Language

SMALL = Transformer(6, layers=1, d=8, heads=2, d_mlp=6)
ATTENTION_AND_POSITIONS = [(name, "nope" if part.orders else "rope") for name, part in ATTENTIONS.items()]
ATTENTION_AND_POSITIONS += [("softmax", name) for name in POSITIONS if name != "rope"]


# ---- against the definition ------------------------------------------------------------------------------------------


RECURRENT = ("rnn", "gru", "lstm")
MAKE = {
    "minimal": partial(minimal_problem, v=7, s=5, model=Minimal(7, 6, 2, 5)),
    "transformer": partial(transformer_problem, batch=12),
    "retriever": partial(retriever_problem, hidden=12, batch=12),
    **{name: partial(transformer_problem, model=MODELS[name](6, 5, 2), batch=12) for name in RECURRENT},
}
KINDS = {
    "placement": PLACEMENTS,
    "norm": NORMS,
    "attention": ATTENTIONS,
    "positions": POSITIONS,
    "dropout": DROPOUTS,
}


def usual_placement(model):
    return "peri" if "peri" in MODELS[model].placements else "none"


def fitting():
    """Every model with every part that fits it, the others as usual; attention that orders goes without positions."""
    for model, kind in ((model, kind) for model in MODELS for kind in KINDS):
        placements = MODELS[model].placements
        for name, part in (placements if kind == "placement" else KINDS[kind]).items():
            further = {"positions": "nope"} if getattr(part, "orders", False) else {}
            chosen = {"norm_at": {"block_out": name}} if getattr(part, "sites", SITES) != SITES else {kind: name}
            problem = MAKE[model](**{"placement": usual_placement(model), **chosen, **further})
            try:
                problem.model.check(problem.parts)
            except Misfit:
                continue
            yield pytest.param(problem, id=f"{model}-{name}")


FITTING = list(fitting())


@pytest.fixture
def in_blocks(monkeypatch):
    """Two models of five at a time, or one, whatever the sizes."""
    monkeypatch.setattr(TorchEngine, "_models_at_once", lambda self, M, work: 2)


def both(problem, **rows):
    """The definition and the fast engine, in double, from weights that are far from zero."""
    ensemble = make_ensemble(problem, 5, **rows)
    engines = Definition(problem, ensemble, "float64"), TorchEngine(problem, ensemble, "float64")
    for engine in engines:
        engine.load(moved(problem, ensemble))
    return engines


def assert_near(got, expected, tolerance, name, scale=0.0):
    """Relative to each model's tensor, or to the scale of what it is a difference of."""
    off, size = (np.linalg.norm(x.reshape(len(x), -1), axis=1) for x in (got - expected, expected))
    assert (off <= tolerance * np.maximum(size, scale)).all(), (name, off / size)


def test_every_model_has_parts_to_try():
    assert {param.id for param in FITTING} >= {
        "minimal-stick-breaking",
        "transformer-nape",
        "retriever-asentmax",
        "minimal-rezero",
        "retriever-dropout",
    }


@pytest.mark.usefixtures("in_blocks")
@pytest.mark.parametrize("problem", FITTING)
def test_loss_and_gradients_are_the_definition_s(problem):
    exact, engine = both(problem)
    assert engine._reads_sets == (problem.task.sets and not problem.model.sees_order(problem.parts))
    batch = problem.minibatch(0, 0)
    (loss_M, g), (got_M, flat) = exact.gradients(batch), engine.gradients(batch)
    np.testing.assert_allclose(got_M, loss_M, rtol=1e-12)
    if not problem.parts.attention.trains:
        return
    whole_M = sum(x.square().reshape(5, -1).sum(1) for x in g.values()).sqrt().numpy()
    got = engine.split(flat[FLAT])
    assert list(got) == list(g)
    for name, x in g.items():
        assert_near(got[name].numpy(), x.numpy(), 3e-12, name, 1e-3 * whole_M)


@pytest.mark.usefixtures("in_blocks")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_steps_are_the_definition_s(model, optimizer):
    """Some models are clipped; AdamW's epsilon is large, so that it does not divide rounding errors by one another."""
    problem = MAKE[model](usual_placement(model), optimizer=optimizer)
    engines = both(problem, max_gradient_norm=(1e-2, 1.0), adam_epsilon=1e-4, peak_learning_rate=1e-3, ema_lag=2.0)
    for engine in engines:
        engine.advance(5)
    expected, got = (engine.dump() for engine in engines)
    assert list(expected) == list(got)
    for name in expected:
        assert_near(got[name], expected[name], 1e-10, name)


def test_it_diverges_where_the_definition_does():
    problem = minimal_problem("none")
    ensemble = make_ensemble(problem, 16, peak_learning_rate=(1.0, 1e30), weight_decay=1.0, warmup_steps=0)
    engines = Definition(problem, ensemble, "float64"), TorchEngine(problem, ensemble, "float64")
    for engine in engines:
        engine.advance(20)
    exact, engine = engines
    assert (exact.diverged_at >= 0).any()
    assert exact.diverged_at.tolist() == engine.diverged_at.tolist()


@pytest.mark.parametrize("model", MODELS)
def test_scores_are_the_definition_s(model, monkeypatch):
    """In pieces, as validation sets are read that are too large for memory."""
    problem = MAKE[model](usual_placement(model))
    exact, engine = both(problem)
    validation = problem.task.validation(0, "selection", *([2] if isinstance(problem.task, Language) else []))
    monkeypatch.setattr(fast, "EVALUATED_AT_ONCE", 2**13)
    assert len(list(validation.pieces(2**13 // (5 * problem.task.vocabulary)))) > 1
    weights = arrays_of(exact.dump(), "theta")
    expected, got = (e.measure(weights, validation, report=True) for e in (exact, engine))
    assert list(expected) == list(got)
    for name, x_MxP in expected.items():
        np.testing.assert_allclose(got[name], x_MxP, rtol=1e-6, atol=1e-7, err_msg=name)


# ---- compiled --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiler():
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.ones(3))
    except Exception as error:
        pytest.skip(f"torch cannot compile here: {str(error).splitlines()[0]}")


def assert_compiled_is_the_definition(steps, problem, monkeypatch):
    """Weights and losses after so many steps, in double."""
    monkeypatch.setattr(fast, "COMPILED_FROM", 1)
    ensemble = make_ensemble(problem, 3)
    exact, compiled = Definition(problem, ensemble, "float64"), TorchEngine(problem, ensemble, "float64")
    exact.advance(steps)
    compiled.advance(steps)
    assert "uncompiled" not in compiled.built
    for name, array in exact.dump().items():
        assert np.allclose(compiled.dump()[name], array, rtol=1e-9, atol=1e-12), name


@pytest.mark.usefixtures("compiler")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
@pytest.mark.parametrize(
    "problem",
    [
        make_problem("peri", v=6, s=4, steps=40),
        *(transformer_problem("peri", SMALL, cap=20, attention=a, positions=p) for a, p in ATTENTION_AND_POSITIONS),
    ],
    ids=["minimal", *("+".join(names) for names in ATTENTION_AND_POSITIONS)],
)
def test_compiled_is_the_same_function(problem, monkeypatch):
    assert_compiled_is_the_definition(10, problem, monkeypatch)


@rs.norm()
def restless(x, p):
    """Goes by the step, and is random in training."""
    return x * (1 + p.t / p.steps + 0.1 * p.uniform(*x.shape[2:])) if p.training else x


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
def test_neither_the_step_nor_random_numbers_are_compiled_in(monkeypatch):
    """Every step has its own, as in the definition, and what was compiled for the first serves all."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    torch._dynamo.utils.counters.clear()
    problem = transformer_problem("peri", SMALL, cap=8, norm=restless, dropout="dropout", positions="nope")
    assert_compiled_is_the_definition(4, problem, monkeypatch)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
def test_a_variant_is_not_trained_as_one_that_was_compiled_before_it(monkeypatch):
    """What is found again is what was traced: there need be no machine code of it."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))

    class Scaled:
        def __init__(self, factor):
            self.factor = factor

        @torch.compiler.assume_constant_result  # as the tables of rope: torch does not look whether they changed
        def constant(self):
            return self.factor

        def loss(self, theta, hyper, piece):
            return theta * self.constant()

    nothing, found = torch.ones(1), []
    for factor in (2.0, 3.0):
        compiled = fast.Compiled(Scaled(factor).loss)
        found.append(compiled(torch.ones(1), nothing, nothing).item())
        assert not compiled.given_up
    assert found == [2.0, 3.0]


@pytest.mark.usefixtures("compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
def test_what_is_compiled_does_not_depend_on_the_piece_that_came_first(monkeypatch):
    monkeypatch.setattr(fast, "COMPILED_FROM", 1)
    problem = transformer_problem("peri", SMALL, cap=30, positions="nope")
    whole, again = (TorchEngine(problem, make_ensemble(problem, 3)) for _ in range(2))
    whole.advance(3)
    between = whole.dump()
    whole.advance(3)
    again.load(between)
    again.advance(3)
    for name, array in whole.dump().items():
        assert np.array_equal(again.dump()[name], array), name


def test_what_cannot_be_compiled_runs_as_it_is():
    def loss(theta, hyper, piece):
        print("torch.compile does not follow this", end="")
        return theta.sum()

    call, nothing = fast.Compiled(loss), torch.ones(1)
    with pytest.warns(UserWarning, match="cannot compile this variant"):
        assert call(torch.ones(3), nothing, nothing) == 3
    assert call(torch.ones(4), nothing, nothing) == 4  # and it is not tried again


def test_what_was_not_compiled_is_not_said_to_round_as_if_it_were(monkeypatch):
    class GivesUp(fast.Compiled):
        def __call__(self, *args):
            self.given_up = True
            return super().__call__(*args)

    monkeypatch.setattr(fast, "COMPILED_FROM", 1)
    monkeypatch.setattr(fast, "Compiled", GivesUp)
    problem = make_problem("peri")
    engine = TorchEngine(problem, make_ensemble(problem, 2))
    before = engine.built
    engine.advance(1)
    assert engine.built == f"{before}-uncompiled"
