import math

import numpy as np
import pytest
import retriever_reference as reference
import torch
from resharpen.models.remedies import REMEDIES
from torch import Tensor

from resharpen.engines.base import Ensemble, Problem, initial_state, part
from resharpen.engines.torch_engine import TorchEngine
from resharpen.models import PLACEMENTS
from resharpen.models.retriever import RETRIEVER_PLACEMENTS, Retriever
from resharpen.optim.adamw import has_decay
from resharpen.optim.hyperparameters import TABLE, draw
from resharpen.tasks.max_retrieval import MaxRetrieval

MODEL, TASK = Retriever(hidden=6), MaxRetrieval()
EPSILON = np.array([1e-6, 1e-2])


def random_theta(placement, n_models=2, model=MODEL, scale=0.7, seed=0):
    """Weights far from their initial values, gains and biases included, so that every term matters."""
    rng = np.random.default_rng(seed)
    shapes = model.matrices() | model.biases() | model.gains(RETRIEVER_PLACEMENTS[placement])
    return {name: scale * rng.standard_normal((n_models, *shape)) for name, shape in shapes.items()}


def tensors(arrays) -> dict[str, Tensor]:
    return {name: torch.tensor(array) for name, array in arrays.items()}


def batch_of(n=5, step=0):
    priority, *rest = TASK.batch((1, 2), 0, step, n, 16)
    return priority.astype(np.float64), *rest


def as_items(batch):
    return [torch.tensor(x) for x in batch]


@pytest.mark.parametrize("placement", RETRIEVER_PLACEMENTS)
def test_logits_and_attention_against_numpy(placement):
    theta, batch = random_theta(placement), batch_of()
    arguments = tensors(theta), as_items(batch), RETRIEVER_PLACEMENTS[placement], torch.tensor(EPSILON)
    got, (entropies, largest) = MODEL.logits(*arguments), MODEL.attention(*arguments)
    for m in range(2):
        one = {name: array[m] for name, array in theta.items()}
        for n, (priority, kinds, length, _) in enumerate(zip(*batch, strict=True)):
            w, z = reference.attention_and_logits(one, priority[:length], kinds[:length], placement, EPSILON[m])
            assert np.allclose(got[m, n].numpy(), z, rtol=1e-10, atol=1e-12)
            assert math.isclose(entropies[m, n].item(), reference.entropy(w), rel_tol=1e-9)
            assert math.isclose(largest[m, n].item(), w.max(), rel_tol=1e-9)


@pytest.mark.parametrize("placement", RETRIEVER_PLACEMENTS)
def test_the_reordered_formula_is_the_printed_one(placement):
    """What a fast engine computes: k = K q, the table of W_1, and V (without a norm on h also W_2) after the sum."""
    theta, batch = random_theta(placement), batch_of()
    has = reference.HAS[placement]

    def rms(x):
        return np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON[0])

    one = {name: array[0] for name, array in theta.items()}
    for priority, kinds, length, _ in zip(*batch, strict=True):
        priority, kinds = priority[:length], kinds[:length]
        _, expected = reference.attention_and_logits(one, priority, kinds, placement, EPSILON[0])
        table = one["W_1"][1:] + one["b_1"]
        u = table[kinds] + priority[:, None] * one["W_1"][0]
        a = np.array([reference.gelu(row) for row in u])
        k = one["K"] @ one["q"]
        if "h" in has:
            h = a @ one["W_2"] + one["b_2"]
            e = (h / rms(h)) @ (k * one["g_block_in"])
        else:
            e = a @ (one["W_2"] @ k)
        w = np.exp(e - e.max()) / np.exp(e - e.max()).sum()
        mixed = w @ (h / rms(h)) * one["g_block_in"] if "h" in has else (w @ a) @ one["W_2"] + one["b_2"]
        z = mixed @ one["V"]
        z = z / rms(z) * one["g_block_out"] if "z" in has else z
        got = reference.gelu(z @ one["W_3"] + one["b_3"]) @ one["W_4"] + one["b_4"]
        assert np.allclose(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("placement", RETRIEVER_PLACEMENTS)
@pytest.mark.parametrize("remedy", ["softmax", "log-n"])
def test_gradients_against_finite_differences(placement, remedy):
    model = Retriever(hidden=3, classes=10)
    theta, batch = random_theta(placement, 1, model), batch_of(3)
    leaves = {name: x.requires_grad_() for name, x in tensors(theta).items()}
    epsilon = torch.tensor(EPSILON[:1])
    value = model.loss(leaves, as_items(batch), RETRIEVER_PLACEMENTS[placement], epsilon, REMEDIES[remedy]).sum()
    gradients = dict(zip(leaves, torch.autograd.grad(value, list(leaves.values())), strict=True))
    one, h = {name: array[0].copy() for name, array in theta.items()}, 1e-5
    factor = (lambda e: math.log(len(e))) if remedy == "log-n" else (lambda e: 1.0)
    assert math.isclose(value.item(), reference.loss(one, batch, placement, EPSILON[0], factor), rel_tol=1e-10)
    rng = np.random.default_rng(2)
    for name, array in one.items():
        flat, expected = array.reshape(-1), gradients[name][0].reshape(-1)
        for i in rng.choice(flat.size, min(4, flat.size), replace=False):
            kept, sides = flat[i], []
            for side in (h, -h):
                flat[i] = kept + side
                sides.append(reference.loss(one, batch, placement, EPSILON[0], factor))
            flat[i] = kept
            assert np.isclose(expected[i].item(), (sides[0] - sides[1]) / (2 * h), rtol=1e-5, atol=1e-8), name


@pytest.mark.parametrize("placement", RETRIEVER_PLACEMENTS)
@pytest.mark.parametrize("remedy", REMEDIES)
def test_padding_never_changes_a_result(placement, remedy):
    """Whatever stands there, NaN too, and however much of it: logits, loss, scores, attention and gradients."""
    theta, (priority, kinds, lengths, labels) = random_theta(placement), batch_of(4)
    padding = np.arange(16) >= lengths[:, None]
    other = np.where(padding, np.nan, priority), np.where(padding, 9, kinds), lengths, labels
    wider = *(np.pad(x, ((0, 0), (0, 5)), constant_values=7) for x in other[:2]), lengths, labels
    results = []
    for batch in ((priority, kinds, lengths, labels), other, wider):
        leaves = {name: x.requires_grad_() for name, x in tensors(theta).items()}
        arguments = leaves, as_items(batch), RETRIEVER_PLACEMENTS[placement], torch.tensor(EPSILON), REMEDIES[remedy]
        loss = MODEL.loss(*arguments)
        found = [loss, MODEL.logits(*arguments), MODEL.scores(*arguments), *MODEL.attention(*arguments)]
        if remedy != "adaptive-temperature":  # for evaluation only
            found += torch.autograd.grad(loss.sum(), list(leaves.values()))
        results.append(found)
    for found in results[1:]:
        assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-13) for a, b in zip(found, results[0], strict=True))


def test_scores_are_right_or_wrong():
    theta, batch = random_theta("post"), batch_of(40)
    arguments = tensors(theta), as_items(batch), RETRIEVER_PLACEMENTS["post"], torch.tensor(EPSILON)
    scores = MODEL.scores(*arguments)
    assert scores.shape == (2, 40)
    assert torch.equal(scores, (MODEL.logits(*arguments).argmax(-1) == torch.tensor(batch[3])).double())
    assert 0 < scores.sum() < 80


def test_only_its_own_four_placements():
    assert list(RETRIEVER_PLACEMENTS) == ["none", "pre", "post", "peri"]
    for name in ("post", "peri", "peri-init", "pre-final"):
        with pytest.raises(ValueError, match="none, pre, post, peri"):
            MODEL.gains(PLACEMENTS[name])
    assert list(MODEL.gains(RETRIEVER_PLACEMENTS["peri"])) == ["g_block_in", "g_block_out"]
    assert [list(MODEL.gains(RETRIEVER_PLACEMENTS[p])) for p in ("none", "pre", "post")] == [
        [],
        ["g_block_in"],
        ["g_block_out"],
    ]


def test_initial_weights_and_decay():
    problem = Problem(TASK, Retriever(), RETRIEVER_PLACEMENTS["peri"], 16, 8, 10, seed=0, setting="max")
    theta = part(initial_state(problem, Ensemble(np.arange(2), {})), "theta")
    assert sum(x[0].size for x in theta.values()) == 11 * 128 + 4 * 128**2 + 128 * 10 + 6 * 128 + 10
    for name, x in theta.items():
        kind = name[:2]
        assert has_decay(name) == (kind not in ("b_", "g_"))
        if kind == "b_":
            assert (x == 0).all()
        elif kind == "g_":
            assert (x == 1).all()
        else:
            assert 0 < np.abs(x).max() <= 0.04


def test_the_torch_engine_trains_it():
    problem = Problem(TASK, Retriever(hidden=32), RETRIEVER_PLACEMENTS["peri"], 16, 64, 400, seed=0, setting="max")
    hyper = draw(TABLE, 0, "max", np.arange(1)) | {
        name: np.array([value])
        for name, value in {
            "peak_learning_rate": 1e-2,
            "one_minus_beta1": 0.1,
            "one_minus_beta2": 0.01,
            "weight_decay": 0.0,
            "warmup_steps": 0.0,
            "max_gradient_norm": 1e2,
        }.items()
    }
    engine = TorchEngine(problem, Ensemble(np.arange(1), hyper))

    def accuracy():
        validation = TASK.validation(0, "selection", longest=16)
        return engine.evaluate(part(engine.dump(), "theta"), validation).mean()

    assert accuracy() < 0.3
    engine.advance(400)
    assert accuracy() > 0.6


def test_bad_sizes():
    with pytest.raises(ValueError, match="hidden = 0"):
        Retriever(hidden=0)
