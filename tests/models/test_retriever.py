import math

import numpy as np
import pytest
import retriever_reference as reference
import torch
from helpers import hyper, make_ensemble, of_parts, random_theta, retriever_problem, tensors

from resharpen.engines.base import initial_state
from resharpen.engines.torch.fast import TorchEngine
from resharpen.models.loss import total_nll
from resharpen.models.retriever import RETRIEVER_PLACEMENTS, Retriever
from resharpen.parts import ATTENTIONS, PLACEMENTS, POSITIONS, Parts
from resharpen.state import arrays_of
from resharpen.tasks import Batch, Items, MaxRetrieval

TASK = MaxRetrieval(longest=16, selection_items=1024)
EPSILON = np.array([1e-6, 1e-2])


def small(placement, hidden=6, **parts):
    return retriever_problem(placement, hidden, **parts)


def batch_of(n=5, step=0):
    (priority, *rest), labels, counts = TASK.batch((1, 2), 0, step, n, 16)
    return Batch(Items(priority.astype(np.float64), *rest), labels, counts)


def as_items(batch):
    return Items(*(torch.tensor(x) for x in batch.inputs))


def sequences(batch):
    """Priorities, classes and length of each sequence."""
    return list(zip(*batch.inputs, strict=True))


def loss_of(problem, theta, batch, epsilon):
    logits = problem.model.logits(theta, as_items(batch), problem.parts, hyper(epsilon))
    return total_nll(logits, torch.tensor(batch.targets), torch.tensor(batch.mask)) / batch.mask.sum()


@pytest.mark.parametrize("placement", RETRIEVER_PLACEMENTS)
def test_logits_and_attention_against_numpy(placement):
    problem, batch = small(placement), batch_of()
    theta = random_theta(problem)
    arguments = tensors(theta), as_items(batch), problem.parts, hyper(EPSILON)
    got, found = problem.model.logits(*arguments), problem.model.dispersion(*arguments)
    assert list(found) == ["entropy", "largest_weight"]
    for m in range(2):
        one = {name: array[m] for name, array in theta.items()}
        for n, (priority, kinds, length) in enumerate(sequences(batch)):
            w, z = reference.attention_and_logits(one, priority[:length], kinds[:length], placement, EPSILON[m])
            assert np.allclose(got[m, n].numpy(), z, rtol=1e-10, atol=1e-12)
            assert math.isclose(found["entropy"][m, n].item(), reference.entropy(w), rel_tol=1e-9)
            assert math.isclose(found["largest_weight"][m, n].item(), w.max(), rel_tol=1e-9)


@pytest.mark.parametrize("placement", RETRIEVER_PLACEMENTS)
def test_the_reordered_formula_is_the_printed_one(placement):
    """What a fast engine computes: k = K q, the table of W_1, and V (without a norm on h also W_2) after the sum."""
    theta, batch = random_theta(small(placement)), batch_of()
    has = reference.HAS[placement]

    def rms(x):
        return np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON[0])

    one = {name: array[0] for name, array in theta.items()}
    for priority, kinds, length in sequences(batch):
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
    problem, batch = small(placement, 3, attention=remedy), batch_of(3)
    theta = random_theta(problem, 1)
    leaves = {name: x.requires_grad_() for name, x in tensors(theta).items()}
    value = loss_of(problem, leaves, batch, EPSILON[:1]).sum()
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
@pytest.mark.parametrize(
    "remedy", [name for name, x in ATTENTIONS.items() if not (x.reads_order or x.output) and name != "differential"]
)
def test_padding_never_changes_a_result(placement, remedy):
    """Whatever stands there, NaN too, and however much of it: logits, loss, scores, attention and gradients."""
    problem, (items, labels, counts) = small(placement, attention=remedy), batch_of(4)
    theta, lengths = random_theta(problem), items.length
    padding = np.arange(16) >= lengths[:, None]
    other = np.where(padding, np.nan, items.priority), np.where(padding, 9, items.kind)
    wider = (np.pad(x, ((0, 0), (0, 5)), constant_values=7) for x in other)
    results = []
    for batch in (Batch(Items(*x, lengths), labels, counts) for x in (items[:2], other, wider)):
        leaves = {name: x.requires_grad_() for name, x in tensors(theta).items()}
        arguments = leaves, as_items(batch), problem.parts, hyper(EPSILON)
        loss, logits = loss_of(problem, leaves, batch, EPSILON), problem.model.logits(*arguments)
        scores = TASK.score(logits, {"label": torch.tensor(labels)})["accuracy"]
        found = [loss, logits, scores, *problem.model.dispersion(*arguments).values()]
        if remedy != "adaptive-temperature":  # for evaluation only
            found += torch.autograd.grad(loss.sum(), list(leaves.values()))
        results.append(found)
    for found in results[1:]:
        assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-13) for a, b in zip(found, results[0], strict=True))


def test_scores_are_right_or_wrong():
    problem, batch = small("post"), batch_of(40)
    logits = problem.model.logits(tensors(random_theta(problem)), as_items(batch), problem.parts, hyper(EPSILON))
    labels = torch.tensor(batch.targets)
    scores = TASK.score(logits, {"label": labels})["accuracy"]
    assert scores.shape == (2, 40)
    assert torch.equal(scores, (logits.argmax(-1) == labels).double())
    assert 0 < scores.sum() < 80
    logits[1, 7, 3] = np.inf
    assert TASK.score(logits, {"label": labels})["accuracy"].isnan().nonzero().tolist() == [[1, 7]]


def test_only_its_own_four_placements():
    model = Retriever(hidden=6)

    def gains(placement):
        return [name for name, p in model.parameters(Parts(RETRIEVER_PLACEMENTS[placement])).items() if p.start == 1.0]

    assert list(RETRIEVER_PLACEMENTS) == ["none", "pre", "post", "peri"]
    for name in ("post", "peri", "peri-init", "pre-final"):
        with pytest.raises(ValueError, match="only on h_i and on z"):
            model.check(Parts(PLACEMENTS[name]))
    for placement in RETRIEVER_PLACEMENTS.values():
        model.check(Parts(placement))
    with pytest.raises(ValueError, match="its items have no positions"):
        model.check(Parts(RETRIEVER_PLACEMENTS["none"], positions=POSITIONS["rope"]))
    assert gains("peri") == ["g_block_in", "g_block_out"]
    assert [gains(p) for p in ("none", "pre", "post")] == [[], ["g_block_in"], ["g_block_out"]]


def test_initial_weights_and_decay():
    problem = retriever_problem("peri", 128)
    theta = arrays_of(initial_state(problem, make_ensemble(problem, 2)), "theta")
    parameters = problem.model.parameters(problem.parts)
    assert set(parameters) == set(theta)
    assert sum(x[0].size for x in theta.values()) == 11 * 128 + 4 * 128**2 + 128 * 10 + 6 * 128 + 10
    for name, x in theta.items():
        kind = name[:2]
        assert parameters[name].decays == (kind not in ("b_", "g_"))
        if kind == "b_":
            assert (x == 0).all()
        elif kind == "g_":
            assert (x == 1).all()
        else:
            assert 0 < np.abs(x).max() <= 0.04


def test_the_torch_engine_trains_it():
    problem = of_parts(TASK, Retriever(hidden=32), RETRIEVER_PLACEMENTS["peri"], 16, 64, 400, seed=2)
    fixed = {
        "peak_learning_rate": 3e-3,
        "one_minus_beta1": 0.1,
        "one_minus_beta2": 0.01,
        "weight_decay": 0.0,
        "warmup_steps": 0.0,
        "max_gradient_norm": 1e2,
    }
    engine = TorchEngine(problem, make_ensemble(problem, 1, **fixed))

    def accuracy():
        validation = TASK.validation(0, "selection")
        return engine.measure(arrays_of(engine.dump(), "theta"), validation)["accuracy"].mean()

    assert accuracy() < 0.3
    engine.advance(400)
    assert accuracy() > 0.8


def test_bad_sizes():
    with pytest.raises(ValueError, match="hidden = 0"):
        Retriever(hidden=0)
