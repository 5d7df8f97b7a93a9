"""The transformer against a float64 NumPy version, written from the formulas: one sequence, one position at a time."""

import math

import numpy as np
import pytest
import torch
from helpers import EVERYTHING, hyper, make_ensemble, random_theta, tensors, transformer_problem
from scipy.special import erf
from torch.nn import functional

import resharpen as rs
from resharpen.engines.torch.definition import Definition
from resharpen.models import causal
from resharpen.models.layers import Bound
from resharpen.models.loss import total_nll
from resharpen.models.transformer import Transformer
from resharpen.parts import ATTENTIONS, PLACEMENTS, POSITIONS, Parts
from resharpen.tasks import Dyck

SMALL = Transformer(6, layers=2, d=8, heads=2, d_mlp=6)


def reference(model, theta, tokens, placement, epsilon, weights=None):
    """Logits of one model after every prefix of one sequence."""

    def norm(present, x, gain):
        return x / math.sqrt((x * x).mean() + epsilon) * theta[gain] if present else x

    def turned(x, position):
        half, out = len(x) // 2, x.copy()
        for i in range(half):
            angle = position * 10_000 ** (-2 * i / len(x))
            pair = complex(x[i], x[i + half]) * complex(math.cos(angle), math.sin(angle))
            out[i], out[i + half] = pair.real, pair.imag
        return out

    x = [norm(placement.embedding_out, theta["E"][t], "g_embedding_out") for t in tokens]
    for layer in range(model.layers):
        a, m = f"{layer}.attention.", f"{layer}.mlp."
        h = [norm(placement.block_in, row, f"{a}g_block_in") for row in x]
        y = [np.zeros(model.d) for _ in x]
        for head in range(model.heads):
            part = slice(head * model.d_head, (head + 1) * model.d_head)
            q, k = (
                [turned(norm(placement.queries_keys, (row @ theta[a + w])[part], a + g), p) for p, row in enumerate(h)]
                for w, g in (("W_Q", "g_queries"), ("W_K", "g_keys"))
            )
            v = [(row @ theta[f"{a}W_V"])[part] for row in h]
            for i in range(len(x)):
                e = np.exp([q[i] @ k[j] / math.sqrt(model.d_head) for j in range(i + 1)])
                y[i][part] = sum(w * row for w, row in zip(e / e.sum(), v, strict=False))
                if weights is not None:
                    weights[layer, head, i, : i + 1] = e / e.sum()
        for i, row in enumerate(y):
            row = norm(placement.heads_out, row, f"{a}g_heads_out")
            x[i] = x[i] + norm(placement.block_out, row @ theta[f"{a}W_O"], f"{a}g_block_out")
            x[i] = norm(placement.residual, x[i], f"{a}g_residual")
            hidden = norm(placement.block_in, x[i], f"{m}g_block_in") @ theta[f"{m}W_1"]
            hidden = hidden * 0.5 * (1 + erf(hidden / math.sqrt(2)))
            x[i] = x[i] + norm(placement.block_out, hidden @ theta[f"{m}W_2"], f"{m}g_block_out")
            x[i] = norm(placement.residual, x[i], f"{m}g_residual")
    return np.array([norm(placement.unembedding_in, row, "g_unembedding_in") @ theta["U"] for row in x])


def small(placement, **parts):
    return transformer_problem(placement, SMALL, cap=9, batch=3, steps=10, **parts)


def attention_weights(theta, tokens, parts, epsilon):
    """Of every layer, [M, N, H, L, L]."""
    record = {}
    SMALL.logits(theta, tokens, parts, hyper(epsilon), record)
    return [record[f"{layer}.attention.weights"] for layer in range(2)]


@pytest.mark.parametrize("name", [*EVERYTHING, "heads-out", "olmo2", "gemma3"])
def test_logits_and_attention_against_numpy(name):
    problem = small(name)
    theta, epsilon = random_theta(problem, 2, scale=0.5), np.array([1e-6, 1e-2])
    tokens = np.array([[4, 0, 1, 3, 2], [4, 1, 1, 3, 3]])
    got = SMALL.logits(tensors(theta), torch.tensor(tokens), problem.parts, hyper(epsilon)).numpy()
    attention = attention_weights(tensors(theta), torch.tensor(tokens), problem.parts, epsilon)
    assert len(attention) == 2
    for m in range(2):
        one = {key: array[m] for key, array in theta.items()}
        for n, row in enumerate(tokens):
            weights = np.zeros((2, 2, 5, 5))
            expected = reference(SMALL, one, row, problem.parts.placement, epsilon[m], weights)
            assert np.allclose(got[m, n], expected, rtol=1e-10, atol=1e-10)
            for layer in range(2):
                assert np.allclose(attention[layer][m, n].numpy(), weights[layer], rtol=1e-10, atol=1e-12)


def test_without_positions_the_earlier_tokens_of_one_layer_are_a_set():
    model, tokens = Transformer(6, layers=1, d=8, heads=2, d_mlp=6), torch.tensor([[4, 0, 1, 3], [1, 4, 0, 3]])
    for positions, same in (("nope", True), ("rope", False)):
        problem = transformer_problem("peri", model, positions=positions)
        theta = tensors(random_theta(problem, 1))
        last = model.logits(theta, tokens, problem.parts, hyper(np.full(1, 1e-6)))[0, :, -1]
        assert torch.allclose(last[0], last[1], rtol=1e-12) == same


@rs.attention(softmax=True, scale=lambda p: p.n.log(), window=3)
def three(e, mask, p):
    return rs.masked_softmax(e, mask)


FURTHER = {
    "window+t5": {"attention": three, "positions": "t5"},
    "window": {"attention": three},
    "sink+kerple": {"attention": "sink", "positions": "kerple"},
}


@pytest.mark.parametrize("name", [*EVERYTHING, "heads-out", "olmo2", "gemma3", *FURTHER])
def test_gradients_against_finite_differences(name):
    """Along random directions of all weights at once, and along single weights of every tensor."""
    problem = small("peri", **FURTHER[name]) if name in FURTHER else small(name)
    ensemble = make_ensemble(problem, 1)
    engine = Definition(problem, ensemble, "float64")
    theta = random_theta(problem, 1, scale=0.5)
    state = engine.dump()
    engine.load(state | {f"theta.{key}": array for key, array in theta.items()})
    batch = problem.minibatch(0, 1)
    losses, gradients = engine.gradients(batch)
    got = {key: g.numpy() for key, g in gradients.items()}
    epsilon = hyper(ensemble.hyperparameters["rms_epsilon"])

    def loss(moved):
        logits = SMALL.logits(tensors(moved), torch.tensor(batch.inputs), problem.parts, epsilon)
        return float(total_nll(logits, torch.tensor(batch.targets), torch.tensor(batch.mask))[0] / batch.mask.sum())

    assert np.isclose(float(losses[0]), loss(theta), rtol=1e-12)
    rng = np.random.default_rng(0)
    directions = [{key: rng.standard_normal(array.shape) for key, array in theta.items()} for _ in range(3)]
    for key, array in theta.items():
        single = {other: np.zeros_like(x) for other, x in theta.items()}
        single[key][0][tuple(rng.integers(0, n) for n in array.shape[1:])] = 1
        directions.append(single)
    for direction in directions:
        sides = [loss({key: theta[key] + h * direction[key] for key in theta}) for h in (1e-6, -1e-6)]
        expected = sum((got[key] * direction[key]).sum() for key in theta)
        assert np.isclose((sides[0] - sides[1]) / 2e-6, expected, rtol=1e-5, atol=1e-8)


def test_loss_is_the_mean_over_real_pairs():
    problem = transformer_problem("peri", SMALL, cap=12, batch=5)
    ensemble = make_ensemble(problem, 1, rms_epsilon=1e-6)
    engine = Definition(problem, ensemble, "float64")
    theta = random_theta(problem, 1, scale=0.5)
    engine.load(engine.dump() | {f"theta.{key}": array for key, array in theta.items()})
    batch = problem.minibatch(0, 0)
    assert not batch.mask.all()
    got, _ = engine.gradients(batch)
    nll = []
    for row, wanted, keep in zip(*batch, strict=True):
        n = keep.sum()
        z = reference(SMALL, {key: array[0] for key, array in theta.items()}, row[:n], problem.parts.placement, 1e-6)
        nll += list(np.log(np.exp(z).sum(1)) - z[np.arange(n), wanted[:n]])
    assert np.isclose(float(got[0]), np.mean(nll), rtol=1e-10)


def test_scores_are_tvd_and_a_marked_logit():
    problem, task = small("post"), Dyck(2, 3)
    theta = tensors(random_theta(problem, 2, scale=0.5))
    inputs, scored, truth = task.examples(task.validation(0, "report", 4))
    logits = SMALL.logits(theta, torch.tensor(inputs), problem.parts, hyper(np.full(2, 1e-6)))[:, scored]
    found = task.score(logits, tensors(truth))
    logits = logits.numpy()
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    assert tuple(found) == task.measures
    assert np.allclose(found["tvd"], 0.5 * np.abs(p - task.p_star(inputs)[scored]).sum(-1))
    assert np.allclose(found["marked"], logits[..., task.marked])


@pytest.mark.parametrize("positions", ["rope", "nope"])
def test_a_remedy_takes_the_place_of_softmax(positions):
    problem, scaled_problem = (small("none", positions=positions, attention=name) for name in ("softmax", "log-n"))
    theta, tokens = tensors(random_theta(problem, 1, scale=0.5)), torch.tensor([[4, 0, 1, 3]])
    epsilon = torch.tensor([1e-6], dtype=torch.float64)
    plain, scaled = (attention_weights(theta, tokens, p.parts, epsilon)[0][0, 0] for p in (problem, scaled_problem))
    for i in range(1, 4):
        expected = plain[:, i, : i + 1] ** math.log(i + 1)
        assert torch.allclose(scaled[:, i, : i + 1], expected / expected.sum(-1, keepdim=True), rtol=1e-9)
    assert not torch.equal(*(SMALL.logits(theta, tokens, p.parts, hyper(epsilon)) for p in (problem, scaled_problem)))


@pytest.mark.parametrize("positions", ["alibi", "nape"])
@pytest.mark.parametrize("attention", ["log-n", "ssmax"])
def test_position_biases_are_not_scaled(positions, attention):
    """softmax(s log(n) q.k / sqrt(d) - m (i - j)), from the logits without either."""
    bare, scaled = (small("none", positions=p, attention=a) for p, a in (("nope", "softmax"), (positions, attention)))
    theta, tokens = tensors(random_theta(scaled, 1, scale=0.9)), torch.tensor([[4, 0, 1, 3, 2]])
    s = theta["0.attention.s_ssmax"][0] if attention == "ssmax" else torch.ones(2, dtype=torch.float64)
    slopes = {"alibi": (2**-4, 2**-8), "nape": (1.0, 0.0)}[positions]
    records = {}, {}
    for problem, record in zip((bare, scaled), records, strict=True):
        SMALL.logits(theta, tokens, problem.parts, hyper(np.full(1, 1e-6)), record)
    e, got = records[0]["0.attention.logits"][0, 0], records[1]["0.attention.weights"][0, 0]
    for head in range(2):
        for i in range(1, 5):
            back = torch.arange(i, -1, -1, dtype=torch.float64)
            expected = (s[head] * math.log(i + 1) * e[head, i, : i + 1] - slopes[head] * back).softmax(-1)
            assert torch.allclose(got[head, i, : i + 1], expected, rtol=1e-9)


@rs.attention(
    softmax=True, scale=lambda p: 1 + p.x.mean(-1)[:, :, None, :, None] * p.n, s=rs.learned("heads", start=1.0)
)
def of_the_user(e, mask, p):
    return rs.masked_softmax(e, mask)


@rs.attention(softmax=True, scale=lambda p: torch.arange(5.0))
def by_key(e, mask, p):
    return rs.masked_softmax(e, mask)


def logits_and_calls(problem, monkeypatch, record=None):
    """Logits, and how often torch's own attention was called for them."""
    calls, own = [], functional.scaled_dot_product_attention
    with monkeypatch.context() as patched:
        patched.setattr(functional, "scaled_dot_product_attention", lambda *a, **k: calls.append(a) or own(*a, **k))
        theta, tokens = tensors(random_theta(problem, 2, scale=0.9)), torch.tensor([[4, 0, 1, 3, 2], [4, 1, 1, 3, 3]])
        logits = SMALL.logits(theta, tokens, problem.parts, hyper(np.full(2, 1e-6)), record)
    return logits, len(calls)


@pytest.mark.parametrize("positions", ["rope", "nope", "alibi"])
@pytest.mark.parametrize("attention", [*ATTENTIONS.values(), of_the_user], ids=lambda part: part.name)
def test_every_softmax_is_torch_s_own(attention, positions, monkeypatch):
    """All that are declared so, with the scale of each, and equal to what is written out; biases need the logits."""
    if attention.orders and positions != "nope":
        pytest.skip("goes without positions")
    problem = small("peri", attention=attention, positions=positions)
    got, calls = logits_and_calls(problem, monkeypatch)
    expected, none = logits_and_calls(problem, monkeypatch, record={})
    assert (calls, none) == (2 if attention.softmax and positions != "alibi" else 0, 0)  # of two layers
    assert torch.allclose(got, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("positions", ["nope", "rope", "alibi"])
def test_a_window_is_the_last_keys(positions):
    """softmax over the last three logits, times the logarithm of how many they are; the same without the weights."""
    bare = small("pre", positions="nope" if positions == "alibi" else positions)
    windowed = small("pre", attention=three, positions=positions)
    theta, tokens = tensors(random_theta(bare, 1, scale=0.9)), torch.tensor([[4, 0, 1, 3, 2, 2, 0, 1]])
    e, got = {}, {}
    SMALL.logits(theta, tokens, bare.parts, hyper([1e-6]), e)
    logits = SMALL.logits(theta, tokens, windowed.parts, hyper([1e-6]), got)
    assert torch.allclose(SMALL.logits(theta, tokens, windowed.parts, hyper([1e-6])), logits, rtol=1e-11, atol=1e-12)
    weights, slopes = got["0.attention.weights"][0, 0], (2**-4, 2**-8) if positions == "alibi" else (0, 0)
    for head, i in np.ndindex(2, 8):
        seen = slice(max(0, i - 2), i + 1)
        back = i - torch.arange(8, dtype=torch.float64)[seen]
        row = math.log(min(i + 1, 3)) * e["0.attention.logits"][0, 0, head, i, seen] - slopes[head] * back
        assert torch.allclose(weights[head, i, seen], row.softmax(-1), rtol=1e-10)
        assert (weights[head, i] > 0).sum() == min(i + 1, 3)


def test_a_softmax_has_no_scale_by_key(monkeypatch):
    with pytest.raises(rs.UserError, match="by-key is declared as softmax: its scale must be the same for all keys"):
        logits_and_calls(small("peri", attention=by_key, positions="nope"), monkeypatch)


@pytest.mark.parametrize("attention", ["asentmax", "stick-breaking", "gated"])
def test_a_few_sequences_at_a_time_are_all_of_them(attention, monkeypatch):
    """Attention weights of long sequences do not fit in memory together."""
    problem = small("peri", attention=attention, positions="nope" if attention == "stick-breaking" else "alibi")
    theta, tokens = (
        tensors(random_theta(problem, 2, scale=0.5)),
        torch.tensor([[4, 0, 1, 3, 2], [4, 1, 1, 3, 3]])[[0, 1, 1, 0, 1]],
    )
    arguments = theta, tokens, problem.parts, hyper(np.full(2, 1e-6))
    whole, calls = SMALL.logits(*arguments), []
    weights = Bound.weights
    monkeypatch.setattr(Bound, "weights", lambda self, e, *rest: calls.append(e.shape[1]) or weights(self, e, *rest))
    for at_once, expected in ((0, [1] * 5), (2 * 2 * 25 * 2, [2, 2, 1]), (2 * 2 * 25 * 5, [5])):
        monkeypatch.setattr(causal, "WEIGHTS_AT_ONCE", at_once)
        assert torch.allclose(SMALL.logits(*arguments), whole, rtol=1e-12)
        assert calls == expected * 2  # layers
        calls.clear()


def test_parameters_by_name():
    model, rope = Transformer(18), POSITIONS["rope"]
    plain, peri = (model.parameters(Parts(PLACEMENTS[name], positions=rope)) for name in ("none", "peri"))
    assert sum(math.prod(p.shape) for p in plain.values()) == 2 * 12 * 64 * 64 + 2 * 18 * 64
    assert list(plain)[:3] == ["E", "0.attention.W_Q", "0.attention.W_K"]
    assert all(p.start is None for p in plain.values())
    assert [name for name in peri if name not in plain] == [
        "g_unembedding_in",
        *(
            f"{layer}.{block}.g_block_{side}"
            for layer in (0, 1)
            for block in ("attention", "mlp")
            for side in ("in", "out")
        ),
    ]
    assert {p.start for name, p in peri.items() if name not in plain} == {1.0}


def test_rope_needs_heads_of_even_width():
    odd = Transformer(4, d=6, heads=2)
    odd.check(Parts(PLACEMENTS["peri"]))
    with pytest.raises(ValueError, match="d / heads = 3 is odd"):
        odd.check(Parts(PLACEMENTS["peri"], positions=POSITIONS["rope"]))


@pytest.mark.parametrize(("sizes", "message"), [({"d": 10}, "multiple of the 4 heads"), ({"layers": 0}, "at least 1")])
def test_bad_sizes(sizes, message):
    with pytest.raises(ValueError, match=message):
        Transformer(4, **sizes)
