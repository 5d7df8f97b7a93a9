"""States in place of sequences: only where the very functions of a variant see no more than these."""

import numpy as np
import pytest
import torch
from helpers import make_ensemble, make_problem

import resharpen as rs
from resharpen.engines.torch.fast import TorchEngine
from resharpen.models import Minimal
from resharpen.models.sets import are_enough
from resharpen.optim.hyperparameters import TABLE
from resharpen.parts import ATTENTIONS, PLACEMENTS, POSITIONS, Parts
from resharpen.parts.part import masked_softmax


@rs.attention()
def recent(e, mask, p):
    """Looks at the number of a key."""
    return masked_softmax(e - 0.1 * torch.arange(e.shape[-1], dtype=e.dtype), mask)


@rs.attention()
def unmasked(e, mask, p):
    """Lets keys in that are not seen."""
    return e.softmax(-1)


@rs.attention()
def leftover(e, mask, p):
    """Right where keys are seen, and something is left for the others."""
    return masked_softmax(e, mask) + 0.1 * ~mask


@rs.attention()
def leaks(e, mask, p):
    """The weights of the keys that are seen depend on those that are not."""
    return masked_softmax(e / e.std(-1, keepdim=True), mask)


@rs.attention()
def counts_all(e, mask, p):
    """Takes the keys that there are for those that are seen."""
    return masked_softmax(np.log(e.shape[-1]) * e, mask)


@rs.attention(s=rs.learned("heads", start=1.0), hyperparameters={"width": rs.Row(0.1, 1.0)})
def scaled(e, mask, p):
    """Learned and drawn numbers and the query do not make an order."""
    return masked_softmax(p.s * p.width * p.ema_power * p.n.log() * e + p.x.mean(-1)[:, :, None, :, None], mask)


@rs.attention()
def log_of_place(e, mask, p):
    """`log-n`, if there is a query for every position."""
    return masked_softmax(torch.arange(1, e.shape[-2] + 1, dtype=e.dtype)[:, None].log() * e, mask)


@rs.attention(hyperparameters={"window": rs.Row(1.0, 1.0)})
def windowed(e, mask, p):
    """Sees order where more keys are seen than it has room for."""
    return masked_softmax(e, mask & (mask.cumsum(-1) > p.n - p.window))


@rs.attention()
def fails(e, mask, p):
    raise TypeError("not like this")


@rs.norm()
def over_positions(x, p):
    return x / (1 + x.square().mean((-2, -1), keepdim=True))


def enough(parts: Parts, **rows: float) -> bool:
    numbers = {name: torch.ones(2) for name in {**TABLE, **parts.hyperparameters}}
    return are_enough(Minimal(5, 4, 2, 4), parts, numbers | {name: torch.full((2,), x) for name, x in rows.items()}, 5)


@pytest.mark.parametrize(
    ("attention", "sees"),
    [
        # one head has no pairs, which differential attention goes by: what cannot be called is not enough
        *((part, part.reads_order or part.name == "differential") for part in ATTENTIONS.values()),
        (scaled, False),
        *((own, True) for own in (recent, unmasked, leftover, leaks, counts_all, log_of_place, windowed, fails)),
    ],
    ids=lambda x: getattr(x, "name", None),
)
def test_an_attention_that_sees_more_than_a_set_is_found_out(attention, sees):
    assert enough(Parts(PLACEMENTS["peri"], attention=attention)) != sees
    assert not enough(Parts(PLACEMENTS["peri"], attention=attention, positions=POSITIONS["rope"]))


def test_it_is_found_out_with_the_numbers_that_models_have():
    assert enough(Parts(PLACEMENTS["peri"], attention=windowed), window=5.0)
    assert not enough(Parts(PLACEMENTS["peri"], attention=windowed), window=4.0)


def test_so_is_a_norm():
    assert not enough(Parts(PLACEMENTS["peri"], norm=over_positions))


def test_what_is_scored_is_what_was_trained():
    """An attention of the user's that is `log-n` in sequences, and something else with one query, trains as `log-n`."""
    built_in, own = (make_problem("peri", attention=attention) for attention in ("log-n", log_of_place))
    engines = [TorchEngine(p, make_ensemble(p, 2, peak_learning_rate=1e-2), dtype="float64") for p in (built_in, own)]
    start = engines[0].dump()
    for engine in engines:
        engine.advance(30)
    a, b = (engine.dump() for engine in engines)
    assert np.abs(a["theta.W_Q"] - start["theta.W_Q"]).max() > 1e-3
    for name in a:
        np.testing.assert_allclose(b[name], a[name], rtol=1e-6, atol=1e-9, err_msg=name)
