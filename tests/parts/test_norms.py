import numpy as np
import pytest
import torch
from helpers import make_ensemble, tensors, transformer_problem

import resharpen as rs
from resharpen.engines.base import initial_state
from resharpen.engines.choose import why_not_native
from resharpen.engines.torch.definition import Definition
from resharpen.models.layers import Bound
from resharpen.models.model import Misfit
from resharpen.parts import NORMS, PLACEMENTS, Parts, Placement

SITED = ("rezero", "layer-scale")


def test_rms_norm_has_one_epsilon_and_one_gain_a_model():
    """Wherever the features are: the model axis is first, the others are the activations'."""
    parts = Parts(Placement(residual=True))
    theta = {"g_residual": torch.tensor([[1.0, 1.0], [2.0, 0.5]])}
    bound = Bound(parts, theta, {"rms_epsilon": torch.tensor([0.0, 12.5])})
    for shape in ((2, 1, 2), (2, 1, 1, 1, 2)):
        x = torch.tensor([[[3.0, 4.0]], [[3.0, 4.0]]]).view(shape)
        y = bound.norm("residual", x)
        assert y.shape == x.shape
        assert torch.allclose(y[0].flatten(), torch.tensor([3.0, 4.0]) / 12.5**0.5)
        assert torch.allclose(y[1].flatten(), torch.tensor([6.0, 2.0]) / 5)


def test_a_norm_that_the_placement_lacks_is_nothing():
    x = torch.randn(2, 3, 4)
    bound = Bound(Parts(Placement()), tensors({}), {"rms_epsilon": torch.ones(2)})
    assert bound.norm("block_in", x) is x


def test_rezero_and_layer_scale_by_hand():
    """At block_out, beside the usual norm in front of the block."""
    placement = PLACEMENTS["peri"]
    y = torch.randn(2, 3, 4, 5)
    theta = {"a_block_out": torch.tensor([0.5, -2.0]), "g_block_out": torch.randn(2, 5), "g_block_in": torch.ones(2, 5)}
    hyper = {"rms_epsilon": torch.zeros(2)}
    rezero, scale = (Bound(Parts(placement, norm_at=(("block_out", NORMS[x]),)), theta, hyper) for x in SITED)
    assert torch.equal(rezero.norm("block_out", y), y * theta["a_block_out"].view(2, 1, 1, 1))
    assert torch.equal(scale.norm("block_out", y), y * theta["g_block_out"].view(2, 1, 1, 5))
    torch.testing.assert_close(rezero.norm("block_in", y), y / y.square().mean(-1, keepdim=True).sqrt())


def test_what_norms_of_sites_learn_and_where_they_start():
    problem = transformer_problem("peri", norm="layer", norm_at={"block_out": "rezero"})
    found = problem.model.parameters(problem.parts)
    assert found["0.mlp.a_block_out"].shape == ()
    assert "0.mlp.g_block_out" not in found
    assert {"0.mlp.g_block_in", "0.mlp.b_block_in", "g_unembedding_in", "b_unembedding_in"} <= set(found)
    state = initial_state(problem, make_ensemble(problem))
    assert (state["theta.0.mlp.a_block_out"] == 0).all()
    scaled = transformer_problem("peri", norm_at={"block_out": "layer-scale"})
    assert (initial_state(scaled, make_ensemble(scaled))["theta.1.attention.g_block_out"] == np.float32(0.1)).all()


def test_with_rezero_a_model_is_its_embedding_at_first():
    """Nothing is added to the stream, and there is still a gradient."""
    problem = transformer_problem("out", norm_at={"block_out": "rezero"})
    engine = Definition(problem, make_ensemble(problem), "float64")
    theta = engine._state["theta"]
    tokens = torch.tensor([[0, 3, 1]])
    logits = problem.model.logits(theta, tokens, problem.parts, engine._hyper_M)
    torch.testing.assert_close(logits[:, 0], theta["E"][:, tokens[0]] @ theta["U"])
    _, g = engine.gradients(problem.minibatch(0, 0))
    assert (g["0.mlp.a_block_out"] != 0).all()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"norm": "rezero"},
            "rezero scales the output of a block, only at block_out, but block_in has a norm",
        ),
        (
            {"norm_at": {"block_in": "layer-scale"}},
            "layer-scale scales the output of a block, only at block_out",
        ),
        (
            {"norm_at": {"residual": "dyt"}},
            "there is no norm at residual in this placement: 'dyt' would have no effect",
        ),
    ],
)
def test_where_a_norm_of_a_site_has_no_meaning(parts, message):
    problem = transformer_problem("peri", **parts)
    with pytest.raises(Misfit, match=message):
        problem.model.check(problem.parts)


def test_the_native_engine_says_that_it_has_one_norm_function():
    assert why_not_native(transformer_problem("peri", norm_at={"block_in": "layer"})) == (
        "it has one norm function for all sites"
    )


def test_a_start_of_one_s_own():
    def start(heads):
        return [2.0**-h for h in range(1, heads + 1)]

    @rs.attention(s=rs.learned("heads", start=start))
    def sloped(e, mask, p):
        return rs.masked_softmax(p.s * e, mask)

    problem = transformer_problem("peri", attention=sloped)
    state = initial_state(problem, make_ensemble(problem))
    assert state["theta.0.attention.s_sloped"].tolist() == [[0.5, 0.25]] * 3
    assert not problem.model.parameters(problem.parts)["0.attention.s_sloped"].decays

    @rs.attention(s=rs.learned("heads", start=lambda h: [1] * 5))
    def wrong_start(e, mask, p):
        return rs.masked_softmax(p.s * e, mask)

    wrong = transformer_problem("peri", attention=wrong_start)
    with pytest.raises(
        rs.UserError, match=r"the start of 0.attention.s_wrong-start must be numbers in the shape \[2\]"
    ):
        initial_state(wrong, make_ensemble(wrong))
