import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import roc_auc_score

from resharpen.metrics import equal_length_auc


def roc_auc(scores_MxP, legal_P):
    """Of prefixes of one length that all weigh the same."""
    weight = np.full((len(legal_P), 1), 1 / len(legal_P))
    return equal_length_auc(scores_MxP[..., None], legal_P[:, None], weight, np.ones(1))


def by_pairs(scores, legal):
    """Every pair of a legal and an illegal one."""
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[legal] for b in scores[~legal]]
    return sum(pairs) / len(pairs)


@given(st.integers(2, 12).flatmap(lambda n: st.tuples(arrays(np.int64, (2, n), elements=st.integers(-3, 3)),
                                                      arrays(np.bool_, n))))  # fmt: skip
def test_auc_counts_pairs_ties_half(drawn):
    scores, legal = drawn
    if legal.all() or not legal.any():
        assert np.isnan(roc_auc(scores.astype(float), legal)).all()
        return
    expected = [by_pairs(row, legal) for row in scores]
    assert np.allclose(roc_auc(scores.astype(float), legal), expected, rtol=1e-12)


@pytest.mark.parametrize("digits", [0, 1, 8], ids=["many ties", "ties", "no ties"])
def test_auc_against_scikit_learn(digits):
    rng = np.random.default_rng(digits)
    scores, legal = rng.standard_normal((3, 200)).round(digits), rng.random(200) < 0.3
    assert np.allclose(roc_auc(scores, legal), [roc_auc_score(legal, row) for row in scores], rtol=1e-12)


def test_auc_of_a_score_that_is_no_number_is_none():
    auc = roc_auc(np.array([[1.0, np.nan, 0.0], [1.0, 0.5, 0.0]]), np.array([True, False, False]))
    assert np.isnan(auc[0])
    assert auc[1] == 1
