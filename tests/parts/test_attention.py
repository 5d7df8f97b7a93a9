import math
from types import SimpleNamespace

import pytest
import torch

from resharpen.parts import ATTENTIONS
from resharpen.parts.attention.adaptive_temperature import entropy, inverse_temperature
from resharpen.parts.part import masked_softmax

LOGITS = torch.tensor([[0.3, -1.2, 2.0, 9.0], [5.0, 7.0, 7.0, 7.0]], dtype=torch.float64)
"""Two queries; what is not seen is finite and large, so that it would be noticed."""
SEEN = torch.tensor([[True, True, True, False], [True, False, False, False]])
LENGTHS = torch.tensor([[3.0], [1.0]], dtype=torch.float64)


def weights(name, e, mask=None, n=None):
    """Weights over the last axis, of all keys where no mask says which."""
    keys = e.shape[-1]
    mask = torch.ones(keys, dtype=torch.bool) if mask is None else mask
    n = torch.tensor(float(keys), dtype=e.dtype) if n is None else n
    part, p = ATTENTIONS[name], SimpleNamespace(n=n)
    return part(part.scaled(e, p), mask, p)


def test_the_table_of_temperatures():
    """Entropies 1 to 6 as published; none below an entropy of one half, and attention never gets flatter."""
    table = {1.0: 1.270, 2.0: 2.099, 3.0: 2.250, 4.0: 2.389, 5.0: 2.294, 6.0: 1.0, 0.5: 1.0, 0.3: 1.0, 0.0: 1.0}
    got = inverse_temperature(torch.tensor(list(table), dtype=torch.float64))
    assert torch.allclose(got, torch.tensor(list(table.values()), dtype=torch.float64), atol=5e-4)
    assert (inverse_temperature(torch.linspace(0, 12, 1000)) >= 1).all()


@pytest.mark.parametrize("name", ["softmax", "log-n", "entmax", "gated", "adaptive-temperature"])
def test_weights_are_weights(name):
    got = weights(name, LOGITS, SEEN, LENGTHS)
    assert torch.allclose(got.sum(-1), torch.ones(2, dtype=torch.float64))
    assert (got[~SEEN] == 0).all()
    assert got[1, 0] == 1


def test_softmax_is_softmax():
    assert torch.allclose(weights("softmax", LOGITS, SEEN, LENGTHS)[0, :3], LOGITS[0, :3].softmax(-1), rtol=1e-12)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_what_is_a_softmax_is_declared_as_one(name):
    """Once it is scaled; whatever is not declared goes without torch's own attention."""
    part, random = ATTENTIONS[name], torch.Generator().manual_seed(0)
    length, sizes = 12, {"heads": 2, "pairs": 1, "d": 3, "d_heads": 4}
    e = torch.randn(1, 3, 2, length, length, dtype=torch.float64, generator=random)
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    shapes = {name: p.sized(sizes).shape for name, p in part.parameters.items()}
    learned = {name: torch.ones(1, 1, *shape, *(1,) * (3 - len(shape))).double() for name, shape in shapes.items()}
    x = torch.randn(1, 3, length, 3, dtype=torch.float64, generator=random)
    got = part.function(e, mask, SimpleNamespace(**learned, n=mask.sum(-1, keepdim=True), x=x))
    assert torch.allclose(got, masked_softmax(e, mask)) == part.softmax


def test_adaptive_temperature_is_the_softmax_of_scaled_logits():
    logits = torch.randn(5, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    beta = [float(inverse_temperature(entropy(row.softmax(-1)))) for row in logits]
    assert min(beta) > 1.5
    got = weights("adaptive-temperature", logits)
    for row, scale, found in zip(logits, beta, got, strict=True):
        assert torch.allclose(found, (scale * row).softmax(-1), rtol=1e-12)


def test_log_n_undoes_dispersion():
    """One logit of 1 above n - 1 zeros: with log n the winner's weight n / (2 n - 1) stays above one half."""
    for n in (4, 64, 4096):
        logits = torch.zeros(n, dtype=torch.float64)
        logits[0] = 1
        assert math.isclose(weights("log-n", logits)[0].item(), n / (2 * n - 1), rel_tol=1e-9)
        assert math.isclose(weights("softmax", logits)[0].item(), math.e / (math.e + n - 1), rel_tol=1e-9)


def test_log_n_counts_items_and_not_padding():
    short = weights("log-n", LOGITS[:1, :3])
    assert torch.allclose(weights("log-n", LOGITS, SEEN, LENGTHS)[:1, :3], short, rtol=1e-12)


def test_log_n_has_a_gradient_beside_padding():
    logits = LOGITS.clone().requires_grad_()
    weights("log-n", logits, SEEN, LENGTHS)[:, 0].sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_entropy():
    assert entropy(torch.tensor([0.0, 1.0])) == 0
    assert math.isclose(entropy(torch.full((8,), 0.125)).item(), math.log(8), rel_tol=1e-6)
