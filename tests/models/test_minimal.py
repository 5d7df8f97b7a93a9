import numpy as np
import pytest
import torch
from helpers import EVERYTHING, hyper, make_problem, random_theta, tensors

import reference
from resharpen.models import Minimal
from resharpen.models.initial import STD, initial_weights, truncated_normal
from resharpen.models.module import SingleModel
from resharpen.parts import ATTENTIONS, PLACEMENT_SOURCES, PLACEMENTS, SITES, Parts, Placement
from resharpen.streams import key


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_logits_against_numpy(placement):
    problem = make_problem(placement)
    theta, epsilon = random_theta(problem, 2), np.array([1e-6, 1e-2])
    tokens = np.array([[3, 0, 4], [1, 2, 0]])
    got = problem.model.logits(tensors(theta), torch.tensor(tokens), problem.parts, hyper(epsilon))
    for m in range(2):
        one = {name: array[m] for name, array in theta.items()}
        for n, row in enumerate(tokens):
            for end in range(3):
                expected = reference.logits(one, row[: end + 1], placement, epsilon[m])
                assert np.allclose(got[m, n, end].numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "attention", [name for name, x in ATTENTIONS.items() if not x.reads_order and name != "differential"]
)
@pytest.mark.parametrize("placement", [*EVERYTHING, "heads-out", "gemma3"])
def test_logits_of_sets_are_those_of_sequences(placement, attention):
    """Every prefix of distinct tokens, given as its last token and its set."""
    problem = make_problem(placement, attention=attention)
    theta, epsilon = tensors(random_theta(problem, 2)), hyper(np.array([1e-6, 1e-2]))
    tokens = torch.tensor([[3, 0, 4, 1], [1, 2, 0, 3], [4, 3, 2, 1]])
    expected = problem.model.logits(theta, tokens, problem.parts, epsilon)
    present_NxLxV = torch.nn.functional.one_hot(tokens, 5).cumsum(1) > 0
    states = tokens.flatten(), present_NxLxV.flatten(0, 1)
    got = problem.model.logits_of_sets(theta, *states, problem.parts, epsilon)
    assert got.dtype == torch.float64
    assert torch.allclose(got, expected.flatten(1, 2), rtol=1e-12, atol=1e-12)


def test_the_table_of_placements():
    """Each row of the table, in the order embedding out, block in, block out, residual, unembedding in; then what is
    inside attention: heads out, queries and keys."""
    table = {
        "pre": "01000",
        "post": "00010",
        "peri": "01101",
        "peri-init": "11101",
        "none": "00000",
        "out": "00100",
        "pre-final": "01001",
        "heads-out": "0000010",
        "olmo2": "0010101",
        "qwen3": "0100101",
        "gemma3": "0110101",
    }
    for name, bits in table.items():
        assert PLACEMENTS[name] == Placement(*(bit == "1" for bit in bits))
    assert set(table) == set(PLACEMENTS) == set(PLACEMENT_SOURCES)


def gains(placement):
    parameters = Minimal(5, 6, 2, 4).parameters(Parts(placement))
    return [name for name, parameter in parameters.items() if parameter.start == 1.0]


def test_a_gain_for_every_norm_and_no_other():
    assert gains(PLACEMENTS["none"]) == []
    around = [f"g_{site}" for site in SITES[:5]]
    assert gains(Placement(*[True] * 7)) == [*around, "g_heads_out", "g_queries", "g_keys"]


def test_a_prefix_is_a_last_token_and_a_set():
    problem = make_problem("peri-init")
    theta = tensors(random_theta(problem, 2))
    tokens = torch.tensor([[0, 1, 2, 3], [2, 0, 1, 3]])
    last = problem.model.logits(theta, tokens, problem.parts, hyper(np.full(2, 1e-6)))[:, :, -1]
    assert torch.allclose(last[:, 0], last[:, 1], rtol=1e-12)


def test_rope_makes_it_see_order_and_needs_pairs():
    problem = make_problem("peri-init", positions="rope")
    theta = tensors(random_theta(problem, 2))
    tokens = torch.tensor([[0, 1, 2, 3], [2, 0, 1, 3]])
    last = problem.model.logits(theta, tokens, problem.parts, hyper(np.full(2, 1e-6)))[:, :, -1]
    assert not torch.allclose(last[:, 0], last[:, 1], rtol=1e-3)
    with pytest.raises(ValueError, match="d_k = 1 is odd"):
        Minimal.usual(5).check(problem.parts)


def test_initial_weights_are_a_truncated_normal():
    x = truncated_normal(key(0, "t"), np.arange(40), (50, 50)).ravel()
    assert np.abs(x).max() <= 2 * STD
    assert abs(x.mean()) < 4e-4
    assert abs(x.std() - 0.0176) < 1e-4


def test_initial_weights_depend_on_draw_and_name_only():
    problem = make_problem("peri")
    parameters = problem.model.parameters(problem.parts)
    some = initial_weights(0, "setting", np.array([5, 9]), parameters)
    other = initial_weights(0, "setting", np.arange(16), {"U": parameters["U"]})
    assert (some["U"] == other["U"][[5, 9]]).all()
    assert (some["U"][0] != some["U"][1]).any()
    assert (some["g_block_in"] == 1).all()


def test_module_is_the_same_function():
    problem = make_problem("peri")
    theta = {name: array.astype(np.float32) for name, array in random_theta(problem, 1).items()}
    one = {name: array[0] for name, array in theta.items()}
    module = SingleModel(problem.model, problem.parts, {"rms_epsilon": 1e-5}, one)
    tokens = torch.tensor([[2, 4, 1]])
    expected = problem.model.logits(tensors(theta), tokens, problem.parts, hyper(torch.tensor([1e-5])))[0]
    assert torch.equal(module(tokens), expected)
    assert {name.removeprefix("weights.") for name, _ in module.named_parameters()} == set(theta)


def test_usual_and_bad_sizes():
    assert Minimal.usual(9) == Minimal(9, d=8, d_k=1, d_v=8)
    with pytest.raises(ValueError, match="d_k = 0: model sizes are at least 1"):
        Minimal(9, 8, 0, 8)
