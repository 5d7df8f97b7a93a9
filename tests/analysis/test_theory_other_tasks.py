"""Models written down by hand solve their tasks, as scored by the tasks themselves."""

import numpy as np
import pytest
from scipy.special import softmax

from resharpen.analysis.theory.other_tasks import (
    last_logits,
    majority_weights,
    recall_logits,
    weighted_weights,
)
from resharpen.metrics import total_variation
from resharpen.tasks import Majority, Recall, WeightedComplement


def majority_tvd(v, kappa, placement, n):
    """The largest TVD, and the share of wrong answers, over random questions of n items."""
    task = Majority(v, train_items=n)
    questions = task.validation(0, "report").inputs_NxL[:, : n + 2]
    ended = questions[:, n + 1] == v + 1
    p = softmax(last_logits(majority_weights(v, kappa), placement, questions[ended]), axis=1)
    p_star = task.p_star(questions[ended])[:, -1]
    determined = p_star.max(1) == 1
    return total_variation(p, p_star).max(), (p.argmax(1) != p_star.argmax(1))[determined].mean()


@pytest.mark.parametrize("n", [3, 12, 48])
def test_majority_of_two_with_a_norm_is_solved_at_every_length(n):
    """Ties included: p* is then a half each."""
    tvd, wrong = majority_tvd(2, 10.0, "out", n)
    assert tvd < 1e-6
    assert wrong == 0


@pytest.mark.parametrize("placement", ["none", "out"])
def test_majority_is_never_wrong_but_disperses(placement):
    few, many = (majority_tvd(4, 20.0, placement, n) for n in (4, 48))
    assert few[1] == many[1] == 0
    assert many[0] > few[0]
    assert majority_tvd(4, 20.0, "none", 48)[0] > majority_tvd(4, 20.0, "out", 48)[0]


def test_weighted_complement_with_a_norm_is_solved_at_every_length():
    task = WeightedComplement(9, 0.7)
    tokens = task.sample_batch(200, 8).inputs
    tvd = {
        placement: [
            total_variation(
                softmax(last_logits(weighted_weights(task, 8.0), placement, tokens[:, :s]), axis=1),
                task.p_star(tokens[:, :s])[:, -1],
            ).max()
            for s in range(1, 9)
        ]
        for placement in ("none", "out", "post")
    }
    assert max(tvd["out"]) < 1e-4
    assert tvd["none"][-1] > 0.1
    assert tvd["post"][-1] > 0.1 or tvd["post"][3] > 0.1


@pytest.mark.parametrize(("n", "sharp"), [(2, 2.0), (16, 4.0), (48, 5.0)])
def test_recall_by_two_layers_is_never_wrong(n, sharp):
    task = Recall(train_items=n)
    found = task.validation(0, "selection")
    rows = found.take(slice(None, None, 8))
    p_star = task.examples(rows).truth["p_star"][:, task.keys :]
    logits = recall_logits(task, rows.inputs_NxL, sharp)[rows.scored_NxL]
    short = rows.length_P <= np.exp(sharp) / 2
    assert short.sum() > 10
    assert (logits.argmax(1) == p_star.argmax(1))[short].all()
