"""Claim 4 on made-up accuracies whose verdict is known."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from resharpen.analysis.claims.max_retrieval import max_retrieval_claims
from resharpen.models import RETRIEVER_PLACEMENTS
from resharpen.tasks import MaxRetrieval

LENGTHS = [16 * 2**i for i in range(9)]


@dataclass
class MadeUp:
    lengths: pl.DataFrame
    models: pl.DataFrame
    experiment = SimpleNamespace(settings=(SimpleNamespace(task=MaxRetrieval()),))

    def table(self, name):
        return getattr(self, name)


def made_up(accuracy, draws=96, train_length=16, lengths=LENGTHS, lost=()):
    rng, values, models = np.random.default_rng(0), [], []
    for placement in RETRIEVER_PLACEMENTS:
        for draw in range(draws):
            model = f"max/{placement}/{draw}"
            models.append((model, "max", placement, draw, train_length))
            for i, n in enumerate(lengths):
                value = None if (placement, draw) in lost else accuracy(placement, i) + 0.01 * rng.standard_normal()
                values.append((model, "train", "best", "", n, "accuracy", value, 64))
    columns = ["model", "weights", "selection", "test", "length", "metric", "value", "count"]
    return MadeUp(
        pl.DataFrame(values, schema=columns, orient="row"),
        pl.DataFrame(models, schema=["model", "setting", "variant", "draw", "train_length"], orient="row"),
    )


def with_gain(at_first, a_length):
    """A norm after attention is worth so much at first, and so much more at every next length."""
    return lambda placement, i: 0.5 + (placement in ("post", "peri")) * (at_first + a_length * i)


@pytest.mark.parametrize(
    ("at_first", "a_length", "better", "more_so"),
    [
        (0.05, 0.02, "holds", "holds"),
        (0.05, 0.0, "holds", "undecided at this scale"),
        (0.3, -0.02, "holds", "does not hold"),
        (-0.05, 0.0, "does not hold", "undecided at this scale"),
    ],
)
def test_verdicts(at_first, a_length, better, more_so):
    (claim,) = max_retrieval_claims(made_up(with_gain(at_first, a_length)))
    assert [finding.verdict for finding in claim.findings] == [better] * 4 + [more_so] * 4
    # of nine lengths the last four against the first four, five lengths further on
    assert claim.findings[4].interval.estimate == pytest.approx(5 * a_length, abs=0.01)


def test_the_longest_length_alone_decides_nothing():
    """A twentieth there is an eightieth in the mean of four lengths."""
    found = max_retrieval_claims(made_up(lambda p, i: 0.5 + 0.05 * (p == "post") * (i == 8)))[0].findings
    assert found[4].interval.estimate == pytest.approx(0.05 / 4, abs=0.005)


def test_lost_models_rank_worst():
    most = {("peri", draw) for draw in range(75)}
    (claim,) = max_retrieval_claims(made_up(with_gain(0.1, 0.01), lost=most))
    verdicts = {finding.what.split(":")[0]: finding.verdict for finding in claim.findings[4:]}
    assert verdicts == {
        **dict.fromkeys(("post - none", "post - pre"), "holds"),
        **dict.fromkeys(("peri - none", "peri - pre"), "does not hold"),
    }


@pytest.mark.parametrize(
    ("train_length", "lengths", "findings"), [(20, LENGTHS, 8), (16, [16, 32], 8), (16, [16], 0), (4_096, LENGTHS, 0)]
)
def test_lengths_that_a_run_may_have(train_length, lengths, findings):
    """Training lengths that are no validated ones; two lengths; nothing new."""
    (claim,) = max_retrieval_claims(made_up(with_gain(0.05, 0.02), 16, train_length, lengths))
    assert len(claim.findings) == findings
