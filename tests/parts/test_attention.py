import math
import runpy
from pathlib import Path

import pytest
import torch

from resharpen.models.remedies import REMEDIES, adaptive_temperature, entropy, inverse_temperature, log_n, softmax

LOGITS = torch.tensor([[0.3, -1.2, 2.0, -torch.inf], [5.0, -torch.inf, -torch.inf, -torch.inf]], dtype=torch.float64)
LENGTHS = torch.tensor([3, 1])


def test_the_table_of_temperatures():
    """Entropies 1 to 6 as published; none below an entropy of one half, and attention never gets flatter."""
    table = {1.0: 1.270, 2.0: 2.099, 3.0: 2.250, 4.0: 2.389, 5.0: 2.294, 6.0: 1.0, 0.5: 1.0, 0.3: 1.0, 0.0: 1.0}
    got = inverse_temperature(torch.tensor(list(table), dtype=torch.float64))
    assert torch.allclose(got, torch.tensor(list(table.values()), dtype=torch.float64), atol=5e-4)
    assert (inverse_temperature(torch.linspace(0, 12, 1000)) >= 1).all()


@pytest.mark.parametrize("name", REMEDIES)
def test_weights_are_weights(name):
    weights = REMEDIES[name](LOGITS, LENGTHS)
    assert torch.allclose(weights.sum(-1), torch.ones(2, dtype=torch.float64))
    assert (weights[LOGITS.isneginf()] == 0).all()
    assert weights[1, 0] == 1


def test_adaptive_temperature_is_the_softmax_of_scaled_logits():
    logits = torch.randn(5, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    beta = [float(inverse_temperature(entropy(row.softmax(-1)))) for row in logits]
    assert min(beta) > 1.5
    got = adaptive_temperature(logits, torch.tensor(40))
    for row, scale, weights in zip(logits, beta, got, strict=True):
        assert torch.allclose(weights, (scale * row).softmax(-1), rtol=1e-12)


def test_log_n_undoes_dispersion():
    """One logit of 1 above n - 1 zeros: with log n the winner's weight n / (2 n - 1) stays above one half."""
    for n in (4, 64, 4096):
        logits = torch.zeros(n, dtype=torch.float64)
        logits[0] = 1
        assert math.isclose(log_n(logits, torch.tensor(n))[0].item(), n / (2 * n - 1), rel_tol=1e-9)
        assert math.isclose(softmax(logits, torch.tensor(n))[0].item(), math.e / (math.e + n - 1), rel_tol=1e-9)


def test_log_n_counts_items_and_not_padding():
    short = log_n(LOGITS[:1, :3], LENGTHS[:1])
    assert torch.allclose(log_n(LOGITS, LENGTHS)[:1, :3], short, rtol=1e-12)


def test_log_n_has_a_gradient_beside_padding():
    logits = LOGITS.clone().requires_grad_()
    log_n(logits, LENGTHS)[:, 0].sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_entropy():
    assert entropy(torch.tensor([0.0, 1.0])) == 0
    assert math.isclose(entropy(torch.full((8,), 0.125)).item(), math.log(8), rel_tol=1e-6)


def test_the_example_runs():
    path = Path(__file__).parents[2] / "examples" / "my_attention.py"
    found = runpy.run_path(str(path))
    weights = found["top_four"](torch.arange(10.0), torch.tensor(10))
    assert (weights > 0).sum() == 4
    assert torch.allclose(weights.sum(), torch.tensor(1.0))
