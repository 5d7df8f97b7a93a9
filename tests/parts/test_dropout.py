"""Dropout against masks that are drawn here, and that it does nothing where models are scored."""

import numpy as np
import pytest
import torch
from helpers import assert_same, make_ensemble, minimal_problem, moved, retriever_problem, transformer_problem

import resharpen as rs
from resharpen.engines.choose import why_not_native
from resharpen.engines.torch.definition import Definition
from resharpen.models.layers import Bound
from resharpen.parts import DROPOUTS, PLACEMENTS, Parts
from resharpen.parts.moment import Moment, uniforms


def bound_to(rate, moment, on="peri"):
    parts = Parts(PLACEMENTS[on], dropout=DROPOUTS["dropout"], moment=moment)
    hyper = {"rms_epsilon": torch.full((2,), 1e-6), "dropout_rate": torch.tensor(rate)}
    return Bound(parts, {"g_block_out": torch.ones(2, 50)}, hyper)


def moment(t=1):
    return Moment(torch.tensor(float(t)), 10, torch.tensor([[1, 2], [3, 4]]) * t)


def test_a_share_is_dropped_and_the_rest_is_larger():
    rate, weights = [0.1, 0.25], torch.rand(2, 40, 2, 30, 30)
    got = bound_to(rate, moment()).dropped("weights", weights)
    for i, r in enumerate(rate):
        kept = got[i] != 0
        assert abs(1 - kept.float().mean() - r) < 0.005
        torch.testing.assert_close(got[i][kept], weights[i][kept] / (1 - r))
    assert not torch.equal(got, bound_to(rate, moment(2)).dropped("weights", weights))


def test_a_block_s_output_is_dropped_after_its_norm():
    x, y = torch.randn(2, 4, 3, 50), torch.randn(2, 4, 3, 50)
    normed = y * (y.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    u = uniforms(moment(), "0.mlp.dropout block_out 1", 4, (3, 50))
    rate = torch.tensor([0.2, 0.0])[:, None, None, None]
    bound = bound_to([0.2, 0.0], moment(), "out")
    bound._theta = {"0.mlp.g_block_out": torch.ones(2, 50)}
    torch.testing.assert_close(bound.close_block(x, y, "0.mlp."), x + torch.where(u < rate, 0.0, normed / (1 - rate)))


@pytest.mark.parametrize("make", [transformer_problem, retriever_problem])
def test_it_acts_in_training_only_and_resumes_bit_for_bit(make):
    problem, plain = make("peri", dropout="dropout"), make("peri")
    ensemble = make_ensemble(problem, dropout_rate=(0.1, 0.3))
    engine, usual = Definition(problem, ensemble), Definition(plain, make_ensemble(plain))
    state = moved(problem, ensemble)
    engine.load(state)
    usual.load(state)
    theta = {name[6:]: x for name, x in state.items() if name.startswith("theta.")}
    validation = problem.task.validation(0, "selection", *([2] if make is transformer_problem else []))
    a, b = (e.measure(theta, validation) for e in (engine, usual))
    assert all(np.array_equal(a[name], b[name]) for name in b)
    batch = problem.minibatch(0, 0)
    losses = [e.gradients(batch)[0] for e in (engine, engine, usual)]
    assert torch.equal(losses[0], losses[1])
    assert (losses[0] != losses[2]).all()
    engine.advance(2)
    resumed = Definition(problem, ensemble)
    resumed.load(engine.dump())
    for e in (engine, resumed):
        e.advance(2)
    assert_same(engine.dump(), resumed.dump())


def test_the_rate_is_drawn_and_can_be_narrowed():
    problem = transformer_problem("peri", dropout="dropout")
    rate = make_ensemble(problem, 16).hyperparameters["dropout_rate"]
    assert 0 <= rate.min() < 0.1 < 0.2 < rate.max() <= 0.3
    assert set(make_ensemble(problem, dropout_rate=0.0).hyperparameters["dropout_rate"]) == {0.0}
    with pytest.raises(rs.UserError, match="dropout_rate"):
        make_ensemble(problem, dropout_rate=1.0)


def test_native_engines_say_whether_they_can():
    assert not why_not_native(transformer_problem("peri", dropout="dropout"))
    reason = why_not_native(minimal_problem("peri", dropout="dropout"))
    assert reason == "it does not support the dropout 'dropout', only no-dropout"


def test_an_own_one_says_what_it_acts_on():
    @rs.dropout(on=("block_out",))
    def doubled(x, p):
        return 2 * x

    x = torch.randn(2, 3, 4, 5)
    bound = Bound(Parts(PLACEMENTS["none"], dropout=doubled, moment=moment()), {}, {})
    assert torch.equal(bound.dropped("block_out", x), 2 * x)
    assert bound.dropped("weights", x) is x
    for wrong in ("weights", (), ("heads",)):
        with pytest.raises(rs.UserError, match="must be a tuple of weights, block_out"):
            rs.dropout(on=wrong)
