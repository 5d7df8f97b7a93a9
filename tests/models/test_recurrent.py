"""Recurrent networks against torch.nn's, with the same weights, in float64: logits and gradients."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import hyper, make_ensemble, of_parts, random_theta, tensors
from torch import nn

import resharpen as rs
from resharpen.engines.base import initial_state
from resharpen.models import MODELS, Gru, Lstm, Rnn
from resharpen.tasks import Dyck

THEIRS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
TOKENS = torch.tensor([[4, 0, 1, 3, 2, 2, 5], [4, 1, 1, 3, 3, 0, 0], [4, 2, 3, 0, 0, 1, 1]])


def problem(kind, layers=1, d=5):
    return of_parts(Dyck(2, 3), MODELS[kind](6, d, layers), "none", 9, 4, 10, 0)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", THEIRS)
def test_logits_and_gradients_are_torch_s(kind, layers):
    made = problem(kind, layers)
    theta = {name: x.requires_grad_() for name, x in tensors(random_theta(made)).items()}
    got = made.model.logits(theta, TOKENS, made.parts, hyper([1e-6, 1e-6]))
    outer = torch.tensor(np.random.default_rng(0).standard_normal(got.shape))
    mine = torch.autograd.grad((got * outer).sum(), list(theta.values()))
    theirs = THEIRS[kind](5, 5, layers, batch_first=True).double()
    for m in range(2):
        one = {name: x[m].detach().clone().requires_grad_() for name, x in theta.items()}
        renamed = {"W_ih": "weight_ih", "W_hh": "weight_hh", "b_ih": "bias_ih", "b_hh": "bias_hh"}
        named = {
            f"{renamed[name]}_l{i}": one[f"{i}.{name}"].mT for i in range(layers) for name in renamed if name[0] == "W"
        }
        named |= {
            f"{renamed[name]}_l{i}": one[f"{i}.{name}"] for i in range(layers) for name in renamed if name[0] == "b"
        }
        assert set(named) == {name for name, _ in theirs.named_parameters()}
        expected = torch.func.functional_call(theirs, named, (one["E"][TOKENS],))[0] @ one["U"]
        torch.testing.assert_close(got[m], expected, rtol=1e-10, atol=1e-12)
        other = torch.autograd.grad((expected * outer[m]).sum(), list(one.values()))
        for name, a, b in zip(theta, mine, other, strict=True):
            assert b.abs().max() > 1e-6, name
            torch.testing.assert_close(a[m], b, rtol=1e-8, atol=1e-11)


def test_weights_start_as_torch_starts_them():
    """Uniform on +-1/sqrt(d) inside, embedding and unembedding as in a transformer of that width: the same draws."""
    made = problem("lstm", d=64)
    state = initial_state(made, make_ensemble(made))
    for name in ("W_ih", "W_hh", "b_ih", "b_hh"):
        x = state[f"theta.0.{name}"]
        assert abs(x).max() <= 1 / 8
        assert abs(x.std() - 1 / 8 / math.sqrt(3)) < 0.002 + 0.01 * (x.ndim == 2)
        assert made.model.parameters(made.parts)[f"0.{name}"].decays == (name[0] == "W")
    other = of_parts(Dyck(2, 3), MODELS["transformer"](6), "none", 9, 4, 10, 0)
    same = initial_state(other, make_ensemble(other))
    assert np.array_equal(state["theta.E"], same["theta.E"])
    assert np.array_equal(state["theta.U"], same["theta.U"])


def test_they_are_variants_beside_a_transformer():
    made = rs.Experiment("x", (rs.Setting(Dyck(2, 3), 9),), ["peri", "lstm", "gru+muon"], models=1, steps=1)
    assert list(made.variants) == ["peri", "lstm", "gru+muon"]
    assert made.settings[0].model_of(made.variants["lstm"]) == Lstm(6, 64, 1)
    with pytest.raises(rs.UserError, match="Gru has no attention in its `takes`: 'ssmax' would have no effect"):
        rs.Experiment("x", (rs.Setting(Dyck(2, 3), 9, Gru(6)),), ["ssmax"], models=1, steps=1)
    with pytest.raises(ValueError, match="layers = 0: model sizes are at least 1"):
        Rnn(6, layers=0)


def test_an_older_run_whose_own_model_has_that_name_stays_readable(tmp_path):
    """A name that was free when a run was started may be built in by now."""
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, vocabulary):\n"
        "        super().__init__()\n"
        "        self.E, self.U = nn.Embedding(vocabulary, 4), nn.Linear(4, vocabulary)\n"
        "    def forward(self, tokens):\n"
        "        return self.U(self.E(tokens))\n"
    )
    mine = rs.Variant(model=f"{tmp_path / 'net.py'}:Net")
    of = {"settings": (rs.Setting(Dyck(2, 3), 9),), "models": 1, "steps": 1}
    with pytest.raises(rs.UserError, match="variant 'lstm' is the name of a built-in variant"):
        rs.Experiment("x", variants={"lstm": mine}, **of)
    stored = rs.Experiment("x", variants={"lstm": replace(mine, engine="torch")}, **of)
    assert list(stored.variants) == ["lstm"]
    assert stored.variants["lstm"].model.kind.startswith("net.py:Net")
