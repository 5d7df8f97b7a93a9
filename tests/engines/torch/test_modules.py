"""Modules of the user's own in the torch engine: the same training as everything built in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import BENIGN, assert_same, make_ensemble, of_parts
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from resharpen import own
from resharpen.engines.base import Problem, initial_state
from resharpen.engines.torch.definition import Definition
from resharpen.engines.torch.fast import TorchEngine
from resharpen.models import Transformer, find_model
from resharpen.models.adapter import module_model
from resharpen.parts import Placement
from resharpen.state import arrays_of
from resharpen.tasks import Dyck, MaxRetrieval, SetComplement

NETS = Path(__file__).parent.parent.parent / "nets.py"


def problem_of(name: str, task=None, optimizer: str = "adamw", steps: int = 20, **sizes: int) -> Problem:
    task = task or Dyck(2, 3)
    model = find_model(own.refer(f"{NETS}:{name}"))(task.vocabulary, **sizes)
    return of_parts(task, model, Placement(), 12, 4, steps, 3, optimizer=optimizer)


CASES = [("LSTM", {}), ("GRU", {"d": 6}), ("Encoder", {}), ("Convolution", {})]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize(("name", "sizes"), CASES)
def test_the_fast_engine_computes_what_is_defined(name, sizes, optimizer):
    """In double, dropout included: both seed it alike."""
    problem = problem_of(name, optimizer=optimizer, **sizes)
    ensemble = make_ensemble(problem, 3, **BENIGN)
    engines = [engine(problem, ensemble, "float64") for engine in (Definition, TorchEngine)]
    for engine in engines:
        engine.advance(8)
    a, b = (engine.dump() for engine in engines)
    for key in a:
        np.testing.assert_allclose(a[key], b[key], rtol=1e-9, atol=1e-12, err_msg=key)
    validation = problem.task.validation(0, "selection", sequences=3)
    measured = [engine.measure(arrays_of(a, "theta"), validation) for engine in engines]
    np.testing.assert_allclose(measured[0]["tvd"], measured[1]["tvd"], atol=1e-6)


def test_items():
    problem = problem_of("Sets", MaxRetrieval(longest=32, items=64, selection_items=32))
    ensemble = make_ensemble(problem, 2)
    engine = TorchEngine(problem, ensemble)
    engine.advance(3)
    found = engine.measure(arrays_of(engine.dump(), "theta"), problem.task.validation(0, "selection"))
    assert set(found) == {"accuracy"}


@pytest.mark.parametrize(("name", "sizes"), CASES)
def test_stopped_and_resumed_ends_with_the_same_bits(name, sizes):
    """In another engine, whose modules have not been called yet; wherever torch's generator stands."""
    problem = problem_of(name, **sizes)
    ensemble = make_ensemble(problem, 3)
    whole, first, second = (TorchEngine(problem, ensemble) for _ in range(3))
    whole.advance(7)
    first.advance(3)
    torch.manual_seed(1)
    second.load(first.dump())
    second.advance(4)
    assert_same(whole.dump(), second.dump())


def test_a_model_is_the_same_with_and_without_others():
    problem = problem_of("Encoder")
    together, alone = (TorchEngine(problem, make_ensemble(problem, draws)) for draws in ([0, 1, 2], [1]))
    for engine in (together, alone):
        engine.advance(6)
    assert_same(together.dump(), alone.dump(), [1])


def test_dropout_is_on_in_training_only_and_differs_by_draw_and_step():
    problem = problem_of("Encoder")
    modules = Definition(problem, make_ensemble(problem, 2))._modules
    weights = {name: torch.tensor(x[[0, 0]]) for name, x in initial(problem).items()}
    tokens = torch.tensor([[0, 1, 2, 3]])

    def logits(step):
        return modules.logits(weights, tokens, step)

    assert torch.equal(logits(0), logits(0))
    assert not torch.equal(logits(0), logits(1))
    assert not torch.equal(logits(0)[0], logits(0)[1])
    assert torch.equal(logits(None), logits(None))
    assert torch.equal(logits(None)[0], logits(None)[1])


def initial(problem: Problem) -> dict[str, np.ndarray]:
    return problem.model.initial(problem.seed, problem.setting, np.arange(1), problem.parts)


def test_a_diverged_model_is_left_alone():
    problem = problem_of("LSTM")
    engine = TorchEngine(problem, make_ensemble(problem, 2, **BENIGN))
    state = engine.dump()
    state["theta.out.weight"][1] = np.inf
    engine.load(state)
    engine.advance(3)
    assert engine.diverged_at.tolist() == [-1, 0]
    found = engine.measure(arrays_of(engine.dump(), "theta"), problem.task.validation(0, "selection", sequences=2))
    assert np.isfinite(found["tvd"][0]).all()
    assert np.isnan(found["tvd"][1]).all()


# ---- the built-in transformer as a module ----------------------------------------------------------------------------


EPSILON = 2.0**-17
"""Exact in single precision, which buffers have: 1e-5 would differ from the double in its eighth digit."""


class Norm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.g = nn.Parameter(torch.ones(d))
        self.register_buffer("epsilon", torch.tensor(EPSILON))

    def forward(self, x):
        return x * (x.square().mean(-1, keepdim=True) + self.epsilon).rsqrt() * self.g


class Block(nn.Module):
    def __init__(self, d, heads, d_mlp):
        super().__init__()
        self.W_Q, self.W_K, self.W_V, self.W_O = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.W_1, self.W_2 = nn.Linear(d, d_mlp, bias=False), nn.Linear(d_mlp, d, bias=False)
        self.norms = nn.ModuleDict({name: Norm(d) for name in ("attention_in", "attention_out", "mlp_in", "mlp_out")})
        self.heads = heads

    def forward(self, x):
        h = self.norms["attention_in"](x)
        q, k, v = (W(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for W in (self.W_Q, self.W_K, self.W_V))
        z = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.norms["attention_out"](self.W_O(z))
        return x + self.norms["mlp_out"](self.W_2(gelu(self.W_1(self.norms["mlp_in"](x)))))


class Peri(nn.Module):
    """The transformer of `models/transformer.py` with the norms of `peri` and no positions."""

    def __init__(self, vocabulary, layers=2, d=8, heads=2, d_mlp=6):
        super().__init__()
        self.E, self.U = nn.Embedding(vocabulary, d), nn.Linear(d, vocabulary, bias=False)
        self.blocks = nn.ModuleList(Block(d, heads, d_mlp) for _ in range(layers))
        self.norm = Norm(d)

    def forward(self, tokens):
        x = self.E(tokens)
        for block in self.blocks:
            x = block(x)
        return self.U(self.norm(x))


def names_of(layers: int) -> dict[str, str]:
    """Built-in name -> name in the module."""
    found = {"E": "E.weight", "U": "U.weight", "g_unembedding_in": "norm.g"}
    for i in range(layers):
        found |= {f"{i}.attention.{W}": f"blocks.{i}.{W}.weight" for W in ("W_Q", "W_K", "W_V", "W_O")}
        found |= {f"{i}.mlp.{W}": f"blocks.{i}.{W}.weight" for W in ("W_1", "W_2")}
        for block in ("attention", "mlp"):
            found |= {f"{i}.{block}.g_block_{x}": f"blocks.{i}.norms.{block}_{x}.g" for x in ("in", "out")}
    return found


@pytest.mark.parametrize(("optimizer", "steps"), [("adamw", 25), ("muon", 4)])
@pytest.mark.parametrize("task", [Dyck(2, 3), SetComplement(6)], ids=lambda task: task.name)
def test_the_built_in_transformer_as_a_module_is_the_same(task, optimizer, steps):
    """With its weights copied, losses and weights are the same to rounding over 100 steps, in double: this also checks
    which parameters decay, which ones Muon acts on, and that matrices are transposed. Muon amplifies rounding: after 50
    steps the built-in transformer itself differs by 1e-9 if its initial weights change by 1e-15. So there it is 16."""
    built_in = Transformer(task.vocabulary, layers=2, d=8, heads=2, d_mlp=6)
    ours = of_parts(task, built_in, "peri", 5, 6, 100, 3, positions="nope", optimizer=optimizer)
    ensemble = make_ensemble(ours, 3, **{**BENIGN, "rms_epsilon": EPSILON})
    module = module_model("peri.py:Peri@000000000000", Peri)(task.vocabulary)
    theirs = replace(ours, model=module, parts=replace(ours.parts, placement=Placement()))
    names = names_of(2)
    assert {name: p.decays for name, p in built_in.parameters(ours.parts).items()} == {
        name: module.parameters(theirs.parts)[other].decays for name, other in names.items()
    }
    begun, state = initial_state(ours, ensemble), initial_state(theirs, ensemble)
    for key, x in begun.items():
        kept, _, name = key.partition(".")
        turned = x.swapaxes(-1, -2) if x.ndim == 3 and name != "E" else x
        state[f"{kept}.{names[name]}" if name else key] = turned.astype(np.float64)
    a, b = Definition(ours, ensemble, "float64"), Definition(theirs, ensemble, "float64")
    assert set(state) == set(b.dump())
    a.load(begun)
    b.load(state)
    for _ in range(4):
        for engine in (a, b):
            engine.advance(steps)
        np.testing.assert_allclose(a.dump()["loss"], b.dump()["loss"], rtol=1e-9)
    final, other = a.dump(), b.dump()
    for name, mapped in names.items():
        x = other[f"theta.{mapped}"]
        expected = x.swapaxes(-1, -2) if x.ndim == 3 and name != "E" else x
        np.testing.assert_allclose(final[f"theta.{name}"], expected, rtol=1e-6, atol=1e-9, err_msg=name)
