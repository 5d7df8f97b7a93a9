import numpy as np
import pytest
import reference
import torch
from helpers import make_problem
from resharpen.models.norm import rms_norm
from torch import Tensor

from resharpen.models import PLACEMENTS, POSITIONS, Placement
from resharpen.models.initial import STD, initial_weights, truncated_normal
from resharpen.models.module import SingleModel
from resharpen.streams import key


def random_theta(problem, n_models, scale=0.7, seed=0):
    """Weights far from their initial values, gains included, so that every term matters."""
    rng = np.random.default_rng(seed)
    shapes = {**problem.model.matrices(), **problem.model.gains(problem.placement)}
    return {name: scale * rng.standard_normal((n_models, *shape)) for name, shape in shapes.items()}


def as_tensors(theta) -> dict[str, Tensor]:
    return {name: torch.tensor(array) for name, array in theta.items()}


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_logits_against_numpy(placement):
    problem = make_problem(placement)
    theta, epsilon = random_theta(problem, 2), np.array([1e-6, 1e-2])
    tokens = np.array([[3, 0, 4], [1, 2, 0]])
    got = problem.model.logits(as_tensors(theta), torch.tensor(tokens), problem.placement, torch.tensor(epsilon))
    for m in range(2):
        one = {name: array[m] for name, array in theta.items()}
        for n, row in enumerate(tokens):
            for end in range(3):
                expected = reference.logits(one, row[: end + 1], placement, epsilon[m])
                assert np.allclose(got[m, n, end].numpy(), expected, rtol=1e-12, atol=1e-12)


def test_the_table_of_placements():
    """Each row of the table, in the order embedding out, block in, block out, residual, unembedding in."""
    table = {
        "pre": "01000",
        "post": "00010",
        "peri": "01101",
        "peri-init": "11101",
        "none": "00000",
        "out": "00100",
        "pre-final": "01001",
    }
    for name, bits in table.items():
        assert PLACEMENTS[name] == Placement(*(bit == "1" for bit in bits))
    assert set(table) == set(PLACEMENTS)


def test_a_gain_for_every_norm_and_no_other():
    problem = make_problem("peri")
    assert list(problem.model.gains(PLACEMENTS["none"])) == []
    everything = Placement(*[True] * 5)
    assert list(problem.model.gains(everything)) == [f"g_{position}" for position in POSITIONS]


def test_rms_norm_has_one_epsilon_a_model():
    x = torch.tensor([[[3.0, 4.0]], [[3.0, 4.0]]])
    y = rms_norm(x, torch.tensor([[1.0, 1.0], [2.0, 0.5]]), torch.tensor([0.0, 12.5]))
    assert torch.allclose(y[0, 0], torch.tensor([3.0, 4.0]) / 12.5**0.5)
    assert torch.allclose(y[1, 0], torch.tensor([6.0, 2.0]) / 5)


def test_a_prefix_is_a_last_token_and_a_set():
    problem = make_problem("peri-init")
    theta = as_tensors(random_theta(problem, 2))
    epsilon = torch.full((2,), 1e-6, dtype=torch.float64)
    tokens = torch.tensor([[0, 1, 2, 3], [2, 0, 1, 3]])
    last = problem.model.logits(theta, tokens, problem.placement, epsilon)[:, :, -1]
    assert torch.allclose(last[:, 0], last[:, 1], rtol=1e-12)


def test_initial_weights_are_a_truncated_normal():
    x = truncated_normal(key(0, "t"), np.arange(40), (50, 50)).ravel()
    assert np.abs(x).max() <= 2 * STD
    assert abs(x.mean()) < 4e-4
    assert abs(x.std() - 0.0176) < 1e-4


def test_initial_weights_depend_on_draw_and_name_only():
    problem = make_problem("peri")
    shapes, gains = problem.model.matrices(), problem.model.gains(problem.placement)
    some = initial_weights(0, "setting", np.array([5, 9]), shapes, gains)
    other = initial_weights(0, "setting", np.arange(16), {"U": shapes["U"]}, {})
    assert (some["U"] == other["U"][[5, 9]]).all()
    assert (some["U"][0] != some["U"][1]).any()
    assert (some["g_block_in"] == 1).all()


def test_module_is_the_same_function():
    problem = make_problem("peri")
    theta = {name: array.astype(np.float32) for name, array in random_theta(problem, 1).items()}
    module = SingleModel(problem.model, problem.placement, 1e-5, {name: array[0] for name, array in theta.items()})
    tokens = torch.tensor([[2, 4, 1]])
    expected = problem.model.logits(as_tensors(theta), tokens, problem.placement, torch.tensor([1e-5]))[0]
    assert torch.equal(module(tokens), expected)
    assert {name.removeprefix("weights.") for name, _ in module.named_parameters()} == set(theta)
