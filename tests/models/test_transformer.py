"""The transformer against a float64 NumPy version, written from the formulas: one sequence, one position at a time."""

import math

import numpy as np
import pytest
import torch
from resharpen.models.remedies import log_n
from resharpen.models.rope import rotate
from scipy.special import erf

from resharpen.engines.base import Ensemble, Problem
from resharpen.engines.torch_engine import TorchEngine
from resharpen.models import PLACEMENTS, Placement
from resharpen.models.transformer import Transformer
from resharpen.optim.hyperparameters import TABLE, draw
from resharpen.tasks.dyck import Dyck

EVERYTHING = {**PLACEMENTS, "all": Placement(*[True] * 5)}
SMALL = Transformer(6, layers=2, d=8, heads=2, d_mlp=6)


def random_theta(model, placement, n_models, seed=0, scale=0.5):
    rng = np.random.default_rng(seed)
    shapes = {**model.matrices(), **model.gains(placement)}
    return {name: scale * rng.standard_normal((n_models, *shape)) for name, shape in shapes.items()}


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
            q, k = ([turned((row @ theta[a + w])[part], p) for p, row in enumerate(h)] for w in ("W_Q", "W_K"))
            v = [(row @ theta[f"{a}W_V"])[part] for row in h]
            for i in range(len(x)):
                e = np.exp([q[i] @ k[j] / math.sqrt(model.d_head) for j in range(i + 1)])
                y[i][part] = sum(w * row for w, row in zip(e / e.sum(), v, strict=False))
                if weights is not None:
                    weights[layer, head, i, : i + 1] = e / e.sum()
        for i, row in enumerate(y):
            x[i] = x[i] + norm(placement.block_out, row @ theta[f"{a}W_O"], f"{a}g_block_out")
            x[i] = norm(placement.residual, x[i], f"{a}g_residual")
            hidden = norm(placement.block_in, x[i], f"{m}g_block_in") @ theta[f"{m}W_1"]
            hidden = hidden * 0.5 * (1 + erf(hidden / math.sqrt(2)))
            x[i] = x[i] + norm(placement.block_out, hidden @ theta[f"{m}W_2"], f"{m}g_block_out")
            x[i] = norm(placement.residual, x[i], f"{m}g_residual")
    return np.array([norm(placement.unembedding_in, row, "g_unembedding_in") @ theta["U"] for row in x])


def tensors(theta):
    return {name: torch.tensor(array) for name, array in theta.items()}


@pytest.mark.parametrize("name", EVERYTHING)
def test_logits_and_attention_against_numpy(name):
    placement = EVERYTHING[name]
    theta, epsilon = random_theta(SMALL, placement, 2), np.array([1e-6, 1e-2])
    tokens = np.array([[4, 0, 1, 3, 2], [4, 1, 1, 3, 3]])
    arguments = tensors(theta), torch.tensor(tokens), placement, torch.tensor(epsilon)
    got = SMALL.logits(*arguments).numpy()
    attention = SMALL.attention_weights(*arguments)
    assert len(attention) == 2
    for m in range(2):
        one = {key: array[m] for key, array in theta.items()}
        for n, row in enumerate(tokens):
            weights = np.zeros((2, 2, 5, 5))
            assert np.allclose(
                got[m, n], reference(SMALL, one, row, placement, epsilon[m], weights), rtol=1e-10, atol=1e-10
            )
            for layer in range(2):
                assert np.allclose(attention[layer][m, n].numpy(), weights[layer], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", EVERYTHING)
def test_gradients_against_finite_differences(name):
    """Along random directions of all weights at once, and along single weights of every tensor."""
    placement, model = EVERYTHING[name], SMALL
    task = Dyck(2, 3)
    problem = Problem(task, model, placement, 9, 3, 10, seed=0, setting="t")
    ensemble = Ensemble(np.arange(1), draw(TABLE, 0, "t", np.arange(1)))
    engine = TorchEngine(problem, ensemble, "float64")
    theta = random_theta(model, placement, 1)
    state = engine.dump()
    engine.load(state | {f"theta.{key}": array for key, array in theta.items()})
    batch = problem.minibatch(0, 1)
    got = {key: g.numpy() for key, g in engine.gradients(batch)[0].items()}
    epsilon = torch.tensor(ensemble.hyperparameters["rms_epsilon"])

    def loss(moved):
        return float(model.loss(tensors(moved), [torch.tensor(x) for x in batch], placement, epsilon)[0])

    rng = np.random.default_rng(0)
    directions = [{key: rng.standard_normal(array.shape) for key, array in theta.items()} for _ in range(3)]
    for key, array in theta.items():
        single = {other: np.zeros_like(x) for other, x in theta.items()}
        single[key][0][tuple(rng.integers(0, n) for n in array.shape[1:])] = 1
        directions.append(single)
    for direction in directions:
        sides = [loss({key: theta[key] + h * direction[key] for key in theta}) for h in (1e-5, -1e-5)]
        expected = sum((got[key] * direction[key]).sum() for key in theta)
        assert np.isclose((sides[0] - sides[1]) / 2e-5, expected, rtol=1e-5, atol=1e-8)


def test_loss_is_the_mean_over_real_pairs():
    placement = PLACEMENTS["peri"]
    theta = random_theta(SMALL, placement, 1)
    inputs, targets, real = Dyck(2, 3).batch((1, 2), 0, 0, 5, 12)
    epsilon = torch.tensor([1e-6], dtype=torch.float64)
    got = SMALL.loss(tensors(theta), [torch.tensor(x) for x in (inputs, targets, real)], placement, epsilon)
    nll = []
    for row, wanted, keep in zip(inputs, targets, real, strict=True):
        n = keep.sum()
        z = reference(SMALL, {key: array[0] for key, array in theta.items()}, row[:n], placement, 1e-6)
        nll += list(np.log(np.exp(z).sum(1)) - z[np.arange(n), wanted[:n]])
    assert np.isclose(float(got[0]), np.mean(nll), rtol=1e-10)


def test_scores_are_tvd_or_a_marked_logit():
    placement, task = PLACEMENTS["post"], Dyck(2, 3)
    theta = tensors(random_theta(SMALL, placement, 2))
    epsilon = torch.full((2,), 1e-6, dtype=torch.float64)
    for metric, _, prefixes in task.validation(0, "report", 4).sets():
        inputs, scored, wanted = task.examples(prefixes)
        got = SMALL.scores(theta, [torch.tensor(x) for x in (inputs, scored, wanted)], placement, epsilon).numpy()
        logits = SMALL.logits(theta, torch.tensor(inputs), placement, epsilon).numpy()[:, scored]
        if metric == "auc":
            assert np.allclose(got, logits[..., task.marked])
        else:
            p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
            assert np.allclose(got, 0.5 * np.abs(p - task.p_star(inputs)[scored]).sum(-1))


def test_rotation_depends_on_relative_positions_only():
    """q_p . k_r is the same for (p, r) and (p + 5, r + 5), changes with p - r, and positions keep lengths."""
    rng = np.random.default_rng(0)
    q, k = (torch.tensor(rng.standard_normal(8)) for _ in range(2))
    turned_q, turned_k = rotate(q.expand(40, 8)), rotate(k.expand(40, 8))
    table = turned_q @ turned_k.T
    assert torch.allclose(table[:35, :35], table[5:, 5:], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(table[0, :10], table[0, 1:11])
    assert torch.allclose(turned_q.norm(dim=-1), q.norm().expand(40))
    assert torch.equal(turned_q[0], q)


def test_the_base_and_the_halves_of_the_rotation():
    """With K = 4: pairs (0, 2) and (1, 3), frequencies 1 and 1/100."""
    x = rotate(torch.tensor([[1.0, 0, 0, 0], [1.0, 0, 0, 0], [0, 1.0, 0, 0]], dtype=torch.float64))
    assert np.allclose(x[1], [math.cos(1), 0, math.sin(1), 0])
    assert np.allclose(x[2], [0, math.cos(0.02), 0, math.sin(0.02)])


def test_a_remedy_takes_the_place_of_softmax():
    placement = PLACEMENTS["none"]
    theta, tokens = tensors(random_theta(SMALL, placement, 1)), torch.tensor([[4, 0, 1, 3]])
    epsilon = torch.tensor([1e-6], dtype=torch.float64)
    plain, scaled = (
        SMALL.attention_weights(theta, tokens, placement, epsilon, *remedy)[0][0, 0] for remedy in ((), (log_n,))
    )
    for i in range(1, 4):
        expected = plain[:, i, : i + 1] ** math.log(i + 1)
        assert torch.allclose(scaled[:, i, : i + 1], expected / expected.sum(-1, keepdim=True), rtol=1e-9)
    assert not torch.equal(
        SMALL.logits(theta, tokens, placement, epsilon), SMALL.logits(theta, tokens, placement, epsilon, log_n)
    )


def test_parameters_by_name():
    model = Transformer(18)
    shapes = model.matrices()
    assert sum(math.prod(shape) for shape in shapes.values()) == 2 * 12 * 64 * 64 + 2 * 18 * 64
    assert list(shapes)[:3] == ["E", "0.attention.W_Q", "0.attention.W_K"]
    assert model.biases() == {}
    assert list(model.gains(PLACEMENTS["none"])) == []
    assert list(model.gains(PLACEMENTS["peri"])) == [
        "g_unembedding_in",
        *(
            f"{layer}.{block}.g_block_{side}"
            for layer in (0, 1)
            for block in ("attention", "mlp")
            for side in ("in", "out")
        ),
    ]


@pytest.mark.parametrize(("sizes", "message"), [({"d": 10}, "multiple of twice"), ({"layers": 0}, "at least 1")])
def test_bad_sizes(sizes, message):
    with pytest.raises(ValueError, match=message):
        Transformer(4, **sizes)
