"""Sentences about published numbers, on made-up draws that can be counted by hand."""

from dataclasses import dataclass

import numpy as np
import published_facts
import pytest
import results
from published_facts import LONGER, TRAINED

import resharpen as rs
from resharpen.analysis.anchors import Compared
from resharpen.analysis.published import COUNTER, FLIP_FLOP, MAXIMUM, SPARSE_SORTING, THEIR_QUERY, TOMITA_7
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


def counts(name, metric, test=""):
    """Length -> scored places of a model."""
    rows = (
        rs.reference(name).table("lengths").filter(metric=metric, weights="train", selection="best-trained", test=test)
    )
    return dict(rows.filter(model=rows["model"][0]).select("length", "count").iter_rows())


def test_numbers_in_the_texts_are_those_of_the_test_sets():
    """What the sections say of the size of test sets, and of what is trivial on them."""
    sets = counts("anchors-max-laptop", "accuracy")
    assert "measured on 128 sets, or 32 with their query, and at 16,384 on 32" in MAXIMUM.differs
    query = results.query_spec().settings[0].task
    assert (sets[4_096], query.items // 4_096, sets[16_384]) == (128, 32, 32)

    reads = [counts("anchors-flip-flop-laptop", "error", test) for test in ("sparse", "dense")]
    assert [sum(n for length, n in of.items() if length <= 64) for of in reads] == [25, 1_773]
    assert "25 reads up to 64 tokens (dense: 1,773)" in FLIP_FLOP.differs

    constant = next(x.constant for x in results.all_compared() if x.source is TOMITA_7 and x.lengths[0] > 100)
    assert round(constant, 2) == 0.79
    assert "in ours this is so in 79%" in TOMITA_7.differs

    task = rs.figure("anchors-counter", "laptop").settings[0].task
    validation, shares = task.validation(0, "report"), {}
    for end in range(10, 110, 10):
        words = [
            tokens[:end][there[:end]]
            for tokens, there in zip(validation.inputs_NxL, validation.scored_NxL, strict=True)
        ]
        alive = [word for word, there in zip(words, validation.scored_NxL, strict=True) if there[end - 10 : end].any()]
        shares[end] = np.mean([not word.any() for word in alive])  # a is token 0
    halves = [np.mean([x for end, x in shares.items() if low < end <= low + 50]) for low in (0, 50)]
    assert [round(x, 2) for x in halves] == [0.43, 0.10]
    assert "in 43% of our strings at 1 to 50 tokens and in 10% at 51 to 100" in COUNTER.differs
