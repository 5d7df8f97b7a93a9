import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import hyper, make_ensemble, random_theta, transformer_problem

import resharpen as rs
from resharpen.engines.base import initial_state
from resharpen.models.layers import Bound
from resharpen.parts import PLACEMENTS, POSITIONS, Parts
from resharpen.parts.positions.rope import rotated as rotate


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


def test_rotation_turns_pairs():
    with pytest.raises(ValueError, match="even width, not 3"):
        rotate(torch.zeros(2, 3))


def test_nope_is_nothing():
    x = torch.randn(2, 3)
    assert POSITIONS["nope"].on == "nothing"
    assert POSITIONS["nope"](x, None) is x


def test_sinusoidal_is_vaswani_s():
    """PE(i, 2j) = sin(i / 10000^(2j/d)), PE(i, 2j + 1) = cos of the same, times s; also where d is odd."""
    for d in (8, 5):
        x = torch.randn(2, 3, 7, d, dtype=torch.float64)
        s = torch.tensor([0.02, -1.5], dtype=torch.float64)
        expected = x.clone()
        for i in range(7):
            for feature in range(d):
                angle = i / 10_000 ** (2 * (feature // 2) / (d + d % 2))
                wave = math.cos(angle) if feature % 2 else math.sin(angle)
                expected[..., i, feature] += s[:, None] * wave
        p = SimpleNamespace(s=s[:, None, None, None])
        torch.testing.assert_close(POSITIONS["sinusoidal"](x, p), expected, rtol=1e-12, atol=1e-12)


def test_sinusoidal_goes_into_the_embedding_once():
    problem = transformer_problem("none", positions="sinusoidal")
    found = [name for name in problem.model.parameters(problem.parts) if "sinusoidal" in name]
    assert found == ["s_sinusoidal"]
    state = initial_state(problem, make_ensemble(problem))
    assert (state["theta.s_sinusoidal"] == np.float32(0.02)).all()
    theta = {name: torch.tensor(x[:1]) for name, x in random_theta(problem).items()}
    with_s, record = {}, {}
    problem.model.logits(theta, torch.tensor([[1, 1, 4]]), problem.parts, hyper([1e-6]), with_s)
    problem.model.logits(
        {**theta, "s_sinusoidal": theta["s_sinusoidal"] * 0},
        torch.tensor([[1, 1, 4]]),
        problem.parts,
        hyper([1e-6]),
        record,
    )
    assert torch.equal(record["embedding"][0, 0, 0], record["embedding"][0, 0, 1])
    assert not torch.equal(with_s["embedding"][0, 0, 0], with_s["embedding"][0, 0, 1])


def test_own_positions_get_queries_and_keys_together():
    @rs.positions(on="queries_keys")
    def apart(q, k, p):
        return q + 1, k * 2

    q, k = torch.randn(2, 1, 3, 2, 4, 5)
    bound = Bound(Parts(PLACEMENTS["none"], positions=apart), {}, {"rms_epsilon": torch.ones(1)})
    turned = bound.turned(q, k)
    assert torch.equal(turned[0], q + 1)
    assert torch.equal(turned[1], k * 2)


def test_wrong_positions_are_refused():
    with pytest.raises(rs.UserError, match=r"@rs.positions is for a function of \(q, k, p\), and this is old"):

        @rs.positions(on="queries_keys")
        def old(x, p):
            return x

    with pytest.raises(rs.UserError, match="unknown place of positions 'keys'"):
        rs.positions(on="keys")

    @rs.positions(on="queries_keys")
    def one(q, k, p):
        return q

    with pytest.raises(rs.UserError, match=r"it must return both, as \(q, k\)"):
        one.turned(torch.ones(1), torch.ones(1), None)
