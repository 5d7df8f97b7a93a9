"""Attentions and norms against what nobody here wrote where there is such a thing, else against float64 loops from the
formulas; and where gradients are likely to break: unseen keys, one key, saturated and equal logits."""

from __future__ import annotations

import math
from types import SimpleNamespace

import entmax as deep_spin
import numpy as np
import pytest
import torch
from helpers import hyper, make_problem, random_theta, tensors

from resharpen.parts import ATTENTIONS, NORMS

HUGE = 1e4


def random(*shape, scale=1.0, seed=0):
    return scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def causal(length):
    seen = torch.ones(length, length, dtype=torch.bool).tril()
    return seen, torch.arange(1.0, length + 1, dtype=torch.float64)[:, None]


def values(name, e, n, d=5):
    """What `p` holds for e [M, N, H, L, L]: numbers of keys, and learned parameters far from where they start."""
    models, _, heads = e.shape[:3]
    sizes = {"heads": heads, "pairs": heads // 2, "d": d, "d_heads": heads * 2}
    shapes = {key: p.sized(sizes).shape for key, p in ATTENTIONS[name].parameters.items()}
    learned = {key: random(models, 1, *shape, scale=0.7, seed=1 + i) for i, (key, shape) in enumerate(shapes.items())}
    raised = {key: x.view(*x.shape, *(1,) * (5 - x.ndim)) for key, x in learned.items()}
    return SimpleNamespace(**raised, n=n, x=random(*e.shape[:2], e.shape[-2], d, seed=9))


# ---- entmax ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0, 1e3])
@pytest.mark.parametrize("keys", [1, 2, 17, 300])
def test_entmax_is_deep_spin_s(scale, keys):
    """Weights and gradients, of theirs by sorting; from uniform to one key alone."""
    e, g = random(40, keys, scale=scale), random(40, keys, seed=1)
    mine, theirs = e.clone().requires_grad_(), e.clone().requires_grad_()
    got = ATTENTIONS["entmax"](mine, torch.ones(keys, dtype=torch.bool), None)
    expected = deep_spin.entmax15(theirs, dim=-1)
    assert torch.allclose(got, expected, rtol=1e-9, atol=1e-12)
    (got * g).sum().backward()
    (expected * g).sum().backward()
    assert torch.allclose(mine.grad, theirs.grad, rtol=1e-8, atol=1e-11)


def test_entmax_of_the_keys_that_are_seen():
    e, (seen, _) = random(3, 6, 6, scale=2), causal(6)
    got = ATTENTIONS["entmax"](e + HUGE * ~seen, seen, None)
    for i in range(6):
        assert torch.allclose(got[:, i, : i + 1], deep_spin.entmax15(e[:, i, : i + 1], dim=-1), rtol=1e-9, atol=1e-12)
    assert (got[:, ~seen] == 0).all()


def test_entmax_in_single_precision_over_many_keys():
    """Rounding in sums over a thousand keys does not get into the weights: they sum to 1, and are those of double."""
    e = random(8, 1400, scale=0.3)
    got = ATTENTIONS["entmax"](e.float(), torch.ones(1400, dtype=torch.bool), None)
    assert torch.allclose(got.sum(-1), torch.ones(8), atol=2e-6)
    assert torch.allclose(got, deep_spin.entmax15(e, dim=-1).float(), rtol=1e-3, atol=1e-7)


def test_entmax_gradients_by_finite_differences():
    seen, _ = causal(5)
    e = random(2, 5, 5, scale=1.5).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: ATTENTIONS["entmax"](x, seen, None), e)


# ---- loops from the formulas -----------------------------------------------------------------------------------------


def softmax(e):
    w = np.exp(e - e.max())
    return w / w.sum()


def entmax15(e):
    """[e_i/2 - tau]_+^2 with tau by bisection."""
    z = e / 2
    low, high = z.max() - 1, z.max()
    for _ in range(200):
        tau = (low + high) / 2
        low, high = (tau, high) if (np.maximum(z - tau, 0) ** 2).sum() > 1 else (low, tau)
    return np.maximum(z - tau, 0) ** 2


def sigma(x):
    return 1 / (1 + math.exp(-x))


def expected_row(name, e, x, of_head):
    """Weights of the query that sees len(e) keys, the last its own."""
    n = len(e)
    if name == "log-n":
        return softmax(math.log(n) * e)
    if name == "ssmax":
        return softmax(of_head["s"] * math.log(n) * e)
    if name == "sink":
        return np.exp(e) / (math.exp(of_head["s"]) + np.exp(e).sum())
    if name == "asentmax" and n > 1:
        b = math.log1p(math.exp(of_head["w_b"] @ x + of_head["c_b"]))
        g = 2 * math.tanh(of_head["w_g"] @ x + of_head["c_g"])
        return entmax15((1 + b * math.log(n) ** g) * e)
    if name == "asentmax":
        return np.ones(1)
    if name == "sigmoid":
        return np.array([sigma(logit - math.log(n)) for logit in e])
    if name == "top-k":
        kept = np.argsort(-e)[:8]
        row = np.zeros(n)
        row[kept] = softmax(e[kept])
        return row
    row = np.zeros(n)  # stick-breaking
    for j in range(n - 1):
        row[j] = sigma(e[j]) * np.prod([1 - sigma(e[k]) for k in range(j + 1, n - 1)])
    return row


@pytest.mark.parametrize("name", ["log-n", "ssmax", "sink", "asentmax", "stick-breaking", "sigmoid", "top-k"])
def test_weights_against_numpy(name):
    models, sequences, heads, length = 2, 3, 2, 12
    e, (seen, n) = random(models, sequences, heads, length, length, scale=1.5), causal(length)
    p = values(name, e, n)
    got = ATTENTIONS[name](ATTENTIONS[name].scaled(e + HUGE * ~seen, p), seen, p).numpy()
    for m, b, h, i in np.ndindex(models, sequences, heads, length):
        of_head = {key: getattr(p, key)[m, 0, h].squeeze().numpy() for key in ATTENTIONS[name].parameters}
        expected = expected_row(name, e[m, b, h, i, : i + 1].numpy(), p.x[m, b, i].numpy(), of_head)
        assert np.allclose(got[m, b, h, i, : i + 1], expected, rtol=1e-9, atol=1e-12), (m, b, h, i)
        assert (got[m, b, h, i, i + 1 :] == 0).all()


def test_the_longest_stick():
    """A thousand keys that each take a third: shares (1/3) (2/3)^k from the nearest on, none lost to underflow."""
    e = torch.full((1200, 1200), math.log(0.5), dtype=torch.float64)
    got = ATTENTIONS["stick-breaking"](e, causal(1200)[0], None)
    assert np.allclose(got[-1, :-1].flip(0).log(), math.log(1 / 3) + np.arange(1199) * math.log(2 / 3), rtol=1e-12)
    assert torch.allclose(got.sum(-1), 1 - (2 / 3) ** torch.arange(1200, dtype=torch.float64), rtol=1e-12)


@pytest.mark.parametrize("name", [name for name, part in ATTENTIONS.items() if part.trains])
@pytest.mark.parametrize("kind", ["unseen", "saturated", "equal", "small"])
def test_gradients_are_finite(name, kind):
    """In single precision, of logits and of everything learned, from the first position on."""
    e, (seen, n) = random(2, 3, 2, 6, 6), causal(6)
    e = {"unseen": e + HUGE * ~seen, "saturated": 300 * e, "equal": 0 * e, "small": 1e-30 * e}[kind].float()
    p = values(name, e, n.float())
    leaves = {key: getattr(p, key).float().requires_grad_() for key in ATTENTIONS[name].parameters}
    p = SimpleNamespace(**leaves, n=p.n, x=p.x.float().requires_grad_())
    e.requires_grad_()
    z = ATTENTIONS[name](ATTENTIONS[name].scaled(e, p), seen, p) @ random(2, 3, 2, 6, 2).float()
    if ATTENTIONS[name].output:
        z = z.transpose(2, 3).flatten(3)
        z = ATTENTIONS[name].output(z, SimpleNamespace(x=p.x, **{key: x[..., 0] for key, x in leaves.items()}))
    z.square().sum().backward()
    for x in (e, *leaves.values()):
        assert x.grad.isfinite().all()
    assert (e.grad[..., ~seen] == 0).all()


def test_one_key_is_all_there_is_whatever_its_scale():
    """(log 1)^g would be infinite for a negative g."""
    e, n = random(1, 1, 1, 1, 1).requires_grad_(), torch.ones(1, 1, dtype=torch.float64)
    w = torch.full((1, 1, 1, 5, 1), -3.0, dtype=torch.float64, requires_grad=True)
    c = torch.zeros(1, 1, 1, 1, 1, dtype=torch.float64)
    p = SimpleNamespace(w_b=w, w_g=w, c_b=c, c_g=c, n=n, x=torch.ones(1, 1, 1, 5, dtype=torch.float64))
    part = ATTENTIONS["asentmax"]
    got = part(part.scaled(e, p), torch.ones(1, 1, dtype=torch.bool), p)
    got.backward()
    assert got.item() == 1
    assert e.grad.item() == 0
    assert (w.grad == 0).all()


def test_a_gate_against_numpy():
    problem = make_problem("pre", attention="gated")
    plain, epsilon = make_problem("pre"), 1e-6
    theta = random_theta(problem, 1)
    one = {name: x[0] for name, x in theta.items()}
    tokens = [3, 0, 4]

    def rms(x):
        return x / math.sqrt((x * x).mean() + epsilon) * one["g_block_in"]

    h = [rms(one["E"][t]) for t in tokens]
    e = np.array([(h[-1] @ one["W_Q"]) @ (row @ one["W_K"]) for row in h]) / math.sqrt(plain.model.d_k)
    z = sum(w * (row @ one["W_V"]) for w, row in zip(softmax(e), h, strict=True))
    z = z * np.array([sigma(x) for x in h[-1] @ one["W_g_gated"]])
    expected = (one["E"][tokens[-1]] + z @ one["W_O"]) @ one["U"]
    got = problem.model.logits(tensors(theta), torch.tensor([tokens]), problem.parts, hyper(np.array([epsilon])))
    assert np.allclose(got[0, 0, -1].numpy(), expected, rtol=1e-11)


def test_asentmax_starts_at_a_scale_of_about_1():
    """Whatever is read, at every length."""
    part, x = ATTENTIONS["asentmax"], random(1, 2, 50, 5)
    start = {
        name: torch.full((1, 1, *p.sized({"heads": 2, "d": 5}).shape), p.start) for name, p in part.parameters.items()
    }
    raised = {name: x.view(*x.shape, *(1,) * (5 - x.ndim)).double() for name, x in start.items()}
    scale = part.scale(SimpleNamespace(**raised, x=x, n=causal(50)[1]))
    assert torch.allclose(scale, torch.tensor(1 + math.log1p(math.exp(-3.0))).double(), rtol=1e-6)


@pytest.mark.parametrize(
    "name", ["sigmoid", "top-k", "forgetting", "differential", "retention", "gated-retention", "asentmax"]
)
def test_gradients_by_finite_differences(name):
    """Of logits, what is read, and everything learned, far from ties."""
    part, (seen, n) = ATTENTIONS[name], causal(5)
    e = random(1, 1, 2, 5, 5, scale=1.5).requires_grad_()
    p = values(name, e, n, d=3)
    names = [*part.parameters, "x"]

    def weights(e, *learned):
        p = SimpleNamespace(**dict(zip(names, learned, strict=True)), n=n)
        return part(part.scaled(e, p), seen, p)

    leaves = [getattr(p, name).requires_grad_() for name in names]
    assert torch.autograd.gradcheck(weights, (e, *leaves))


# ---- norms -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "theirs"), [("rms", torch.nn.RMSNorm), ("layer", torch.nn.LayerNorm)])
@pytest.mark.parametrize("epsilon", [1e-10, 1e-4, 0.3])
def test_norms_are_torch_s(name, theirs, epsilon):
    d, x, outer = 7, random(4, 3, 7, scale=2), random(4, 3, 7, seed=1)
    norm = theirs(d, eps=epsilon, dtype=torch.float64)
    learned = {"g": random(d, seed=2), "b": random(d, seed=3)}
    for mine, parameter in zip("gb", norm.parameters(), strict=False):
        parameter.data.copy_(learned[mine])
    results = []
    for function in (norm, lambda x: NORMS[name](x, SimpleNamespace(rms_epsilon=epsilon, **learned))):
        leaf = x.clone().requires_grad_()
        y = function(leaf)
        (y * outer).sum().backward()
        results.append((y.detach(), leaf.grad))
    for a, b in zip(*results, strict=True):
        assert torch.allclose(a, b, rtol=1e-10, atol=1e-12)


def test_dyt_is_its_formula():
    x, g, b = random(4, 7), random(7, seed=1), random(7, seed=2)
    got = NORMS["dyt"](x, SimpleNamespace(a=torch.tensor(0.25), g=g, b=b))
    expected = [[g[j] * math.tanh(0.25 * x[i, j]) + b[j] for j in range(7)] for i in range(4)]
    assert np.allclose(got, expected, rtol=1e-12)
    assert {name: p.start for name, p in NORMS["dyt"].parameters.items()} == {"a": 0.5, "g": 1.0, "b": 0.0}
    assert NORMS["dyt"].parameters["a"].shape == ()
