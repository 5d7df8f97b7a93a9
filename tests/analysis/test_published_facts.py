"""Sentences about published numbers, on made-up draws that can be counted by hand."""

from dataclasses import dataclass

import numpy as np
import published_facts
import pytest
import results
from published_facts import LONGER, TRAINED

from resharpen.analysis.anchors import Compared
from resharpen.analysis.published import MAXIMUM, SPARSE_SORTING, THEIR_QUERY
from resharpen.analysis.statistics import Sample

# of six draws the first four learn to sort with softmax, the last five with entmax
SHARES = {
    ("softmax", TRAINED): [0.95, 0.99, 0.9, 1.0, 0.1, 0.89],
    ("entmax", TRAINED): [0.2, 0.9, 0.95, 0.99, 1.0, 1.0],
    ("asentmax", TRAINED): [0.0, 0.9, 0.9, 0.9, 0.9, 0.9],
    ("entmax minus softmax", LONGER): [-0.9, 0.1, 0.2, 0.0, 0.9, 0.9],
    ("asentmax minus entmax", LONGER): [0.9, 0.1, -0.1, -0.2, 0.3, 0.4],
}


@dataclass(frozen=True)
class SixDraws:
    """A reference of six draws."""

    experiment = type("Experiment", (), {"models": 6})


@pytest.fixture
def six_draws(monkeypatch):
    anchors = {anchor.what: anchor for anchor in SPARSE_SORTING.anchors}
    found = [
        Compared(SPARSE_SORTING, anchors[what], "drawn", lengths, Sample(np.array(shares), 6.0), False, "items")
        for (what, lengths), shares in SHARES.items()
    ]
    monkeypatch.setattr(published_facts, "all_compared", lambda: found)
    monkeypatch.setattr(published_facts, "reference", lambda name: SixDraws())


def test_pairs_where_both_models_learn_to_sort(six_draws):
    assert published_facts.learned_sorting() == "softmax 4, entmax 5, asentmax 5 of 6"
    assert published_facts.ahead_on_longer("entmax", "softmax") == "2 of 3"  # draws 1, 2, 3, the last a tie
    assert published_facts.ahead_on_longer("asentmax", "entmax") == "3 of 5 (behind in 2)"
    assert published_facts.middle(SPARSE_SORTING.title, "entmax minus softmax", LONGER) == "15.0 (-90.0 to 90.0)"
    assert not published_facts.sparse_order()  # two gains and no loss are not significant


def test_draws_that_do_not_match_are_not_paired(six_draws):
    short = next(each for each in published_facts.all_compared() if each.anchor.what == "entmax")
    object.__setattr__(short, "sample", Sample(np.ones(5), 5.0))
    with pytest.raises(ValueError, match="broadcast"):
        published_facts.ahead_on_longer("entmax", "softmax")


def test_the_sign_test_by_hand():
    """Ties are left out: P(6 of 6) = 2 / 2^6, P(at least 5 of 6) = 2 (1 + 6) / 2^6."""
    assert published_facts.sign_test(np.array([1.0] * 6 + [0.0] * 9)) == pytest.approx(2 / 2**6)
    assert published_facts.sign_test(np.array([1.0] * 5 + [-3.0, 0.0])) == pytest.approx(14 / 2**6)


def test_the_gain_with_their_query_is_paired():
    """Of the stored draws, by hand for one number of items."""
    rows = results.read_study("anchors-query").filter(length=1_024).sort("draw")
    softmax, adaptive = (rows.filter(variant=f"none{part}")["value"] for part in ("", "+adaptive-temperature"))
    found = [each for each in results.with_their_query() if each.anchor.what == "gain" and each.lengths[0] == 1_024]
    assert [each.hyperparameters for each in found] == [THEIR_QUERY]
    assert found[0].source is MAXIMUM
    assert found[0].sample.values_N.tolist() == pytest.approx((adaptive - softmax).to_list())
