"""Optimizers against those that nobody here wrote, in float64: here several models at once, there one by one."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import make_ensemble, make_problem, retriever_problem, transformer_problem
from lion_pytorch import Lion

from resharpen.engines.torch.fast import TorchEngine
from resharpen.optim import OPTIMIZERS
from resharpen.optim.hyperparameters import TABLE, draw
from resharpen.optim.muon import orthogonal

STEPS, MODELS = 6, 3
MATRICES = [(4, 6), (6, 4), (5, 5), (4, 1), (1, 4)]


def draws_of(name):
    rows = {**TABLE, **OPTIMIZERS[name].hyperparameters}
    return draw(rows, 5, name, np.arange(MODELS))


def ours(name, theta, gradients, inner=False, draws=None):
    """theta [M, ...] after a step on each gradient, with the hyperparameters of `draws_of` and no schedule."""
    part, draws = OPTIMIZERS[name], draws or draws_of(name)
    state = {key: torch.zeros_like(theta) for key in part.state}

    def column(x):
        return torch.tensor(x).view(-1, *(1,) * (theta.ndim - 1))

    for t, g in enumerate(gradients, 1):
        columns = {key: x[0] for key, x in part.columns(draws, np.array([[float(t)]])).items()}
        p = SimpleNamespace(**{key: column(x) for key, x in {**draws, **columns}.items()})
        p.lr, p.decay, p.inner, p.t = p.peak_learning_rate, p.weight_decay, inner, t
        theta, state = part.update(theta, g, state, p)
    return theta


def theirs(optimizer_of, theta, gradients, before=lambda weights, m: None):
    """The same with an optimizer of torch's kind for each model."""
    out = []
    for m in range(len(theta)):
        weights = torch.nn.Parameter(theta[m].clone())
        optimizer = optimizer_of([weights], m)
        for g in gradients:
            before(weights.data, m)
            weights.grad = g[m].clone()
            optimizer.step()
        out.append(weights.detach())
    return torch.stack(out)


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def start_and_gradients(*shape):
    return random(MODELS, *shape), [random(MODELS, *shape, seed=t) for t in range(1, STEPS + 1)]


def test_adamw_is_torch_s():
    theta, gradients = start_and_gradients(3, 4)
    h = draws_of("adamw")

    def adamw(weights, m):
        betas = 1 - h["one_minus_beta1"][m], 1 - h["one_minus_beta2"][m]
        rates = {"lr": h["peak_learning_rate"][m], "weight_decay": h["weight_decay"][m], "eps": h["adam_epsilon"][m]}
        return torch.optim.AdamW(weights, betas=betas, **rates)

    assert torch.allclose(ours("adamw", theta, gradients), theirs(adamw, theta, gradients), rtol=1e-9, atol=1e-12)


def test_sgd_is_torch_s_with_decoupled_decay():
    theta, gradients = start_and_gradients(3, 4)
    h = draws_of("sgd")

    def decay(weights, m):
        weights.mul_(1 - h["peak_learning_rate"][m] * h["weight_decay"][m])

    def sgd(weights, m):
        return torch.optim.SGD(weights, lr=h["peak_learning_rate"][m], momentum=1 - h["one_minus_beta1"][m])

    assert torch.allclose(ours("sgd", theta, gradients), theirs(sgd, theta, gradients, decay), rtol=1e-10, atol=1e-12)


def test_lion_is_lucidrains_s():
    theta, gradients = start_and_gradients(3, 4)
    h = draws_of("lion")

    def lion(weights, m):
        betas = 1 - h["one_minus_beta1"][m], 1 - h["one_minus_beta2"][m]
        return Lion(weights, lr=h["peak_learning_rate"][m], betas=betas, weight_decay=h["weight_decay"][m])

    assert torch.allclose(ours("lion", theta, gradients), theirs(lion, theta, gradients), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", MATRICES, ids=str)
def test_muon_is_torch_s(shape, monkeypatch):
    """Theirs is [out, in] and orthogonalises in bfloat16: here it stays in double."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda x: x)
    theta, gradients = start_and_gradients(*shape)
    h = draws_of("muon")
    assert 1e-4 <= h["muon_learning_rate"].min() < h["muon_learning_rate"].max() <= 1e-1

    def muon(weights, m):
        rates = {"lr": h["muon_learning_rate"][m], "weight_decay": h["weight_decay"][m]}
        return torch.optim.Muon(weights, momentum=1 - h["one_minus_beta1"][m], **rates)

    expected = theirs(muon, theta.mT, [g.mT for g in gradients]).mT
    assert torch.allclose(ours("muon", theta, gradients, inner=True), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shape", MATRICES, ids=str)
def test_an_orthogonal_matrix_keeps_directions_and_has_singular_values_near_one(shape):
    x = random(2, *shape)
    left, values, right = torch.linalg.svd(orthogonal(x), full_matrices=False)
    assert values.min() > 0.6
    assert values.max() < 1.25
    before = torch.linalg.svd(x, full_matrices=False)
    assert torch.allclose((left @ right), before.U @ before.Vh, atol=1e-9)
    assert torch.equal(orthogonal(torch.zeros(2, *shape)), torch.zeros(2, *shape))


def test_muon_is_adamw_for_what_is_not_inner():
    theta, gradients = start_and_gradients(3, 4)
    draws = draws_of("muon")
    expected = ours("adamw", theta, gradients, draws=draws)
    assert torch.equal(ours("muon", theta, gradients), expected)
    assert not torch.allclose(ours("muon", theta, gradients, inner=True), expected)


@pytest.mark.parametrize(
    ("problem", "inner"),
    [
        (make_problem("peri", attention="gated"), {"W_Q", "W_K", "W_V", "W_O", "W_g_gated"}),
        (transformer_problem("peri"), {"W_Q", "W_K", "W_V", "W_O", "W_1", "W_2"}),
        (retriever_problem("peri", attention="asentmax"), {"W_2", "K", "V", "W_3"}),
    ],
    ids=["minimal", "transformer", "retriever"],
)
def test_what_is_inner(problem, inner):
    parameters = problem.model.parameters(problem.parts)
    assert {name.split(".")[-1] for name, p in parameters.items() if p.inner} == inner


def test_in_an_engine_only_inner_matrices_leave_adamw_s_path():
    """Paired: the same draws, the same first gradient, so what is not inner takes the same first step."""
    states = {}
    for name in ("adamw", "muon"):
        problem = transformer_problem("peri", optimizer=name)
        engine = TorchEngine(problem, make_ensemble(problem, 2, warmup_steps=0))
        engine.advance(1)
        states[name] = engine.dump()
    parameters = problem.model.parameters(problem.parts)
    for name, p in parameters.items():
        same = np.array_equal(states["adamw"][f"theta.{name}"], states["muon"][f"theta.{name}"])
        assert same == (not p.inner), name
    assert 0 < sum(p.inner for p in parameters.values()) < len(parameters)
