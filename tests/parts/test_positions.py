import math

import numpy as np
import pytest
import torch

from resharpen.parts import POSITIONS
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
