import math
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from resharpen import streams
from resharpen.tasks import SetComplement


def test_p_star_of_every_sequence():
    task = SetComplement(5)
    for length in range(1, 5):
        for tokens in permutations(range(5), length):
            expected = [0.0 if t in tokens else 1 / (5 - length) for t in range(5)]
            assert np.allclose(task.p_star(np.array([tokens]))[0, -1], expected, atol=0)


def test_p_star_of_a_prefix_ignores_what_follows():
    task = SetComplement(6)
    whole = task.p_star(np.array([[3, 1, 5, 0]]))[0]
    for length in range(1, 5):
        assert (whole[length - 1] == task.p_star(np.array([[3, 1, 5, 0][:length]]))[0, -1]).all()


@given(st.integers(2, 30), st.data())
def test_samples_are_distinct_tokens(v, data):
    s = data.draw(st.integers(1, v - 1))
    inputs, targets, mask = SetComplement(v).batch(streams.key(0, "t"), 2, 5, 7, s)
    assert inputs.shape == targets.shape == mask.shape == (7, s)
    assert mask.all()
    assert (inputs[:, 1:] == targets[:, :-1]).all()
    for row, last in zip(inputs, targets[:, -1], strict=True):
        assert len({*row, last}) == s + 1
        assert min(*row, last) >= 0
        assert max(*row, last) < v


def test_all_ordered_samples_are_equally_likely():
    task, n = SetComplement(4), 24_000
    inputs, targets, _ = task.batch(streams.key(11, "uniform"), 0, 0, n, 2)
    counts = Counter(map(tuple, np.column_stack([inputs, targets[:, -1]]).tolist()))
    assert len(counts) == 24
    assert chisquare(list(counts.values())).pvalue > 1e-4


def test_sample_counts_absent_tokens_upwards():
    """Words chosen so that the ranks are 2, 0, 1 of the 5, 4, 3 absent tokens: tokens 2, 0, 3."""
    ranks, bounds = [2, 0, 1], [5, 4, 3]
    words = np.array([[math.ceil(rank * 2**32 / bound) for rank, bound in zip(ranks, bounds, strict=True)]], np.uint32)
    assert SetComplement(5).sample(words).tolist() == [[2, 0, 3]]


def test_every_state_once():
    task = SetComplement(9)
    validation = task.validation(0, "report")
    states = {
        (row[n], frozenset(row[: n + 1]))
        for row, n in zip(validation.inputs_NxL.tolist(), validation.scored_NxL.argmax(1).tolist(), strict=True)
    }
    assert len(states) == len(validation.length_P) == 2295
    by_length = Counter(validation.length_P.tolist())
    assert by_length == {i: 9 * math.comb(8, i - 1) for i in range(1, 9)}


def test_large_sets_are_sampled_once_and_differ_by_use():
    task = SetComplement(16)
    one, again, other = (task.validation(0, use) for use in ("report", "report", "selection"))
    assert one.inputs_NxL.shape == (1024, 15)
    assert (one.inputs_NxL == again.inputs_NxL).all()
    assert (one.inputs_NxL != other.inputs_NxL).any()
    assert set(one.length_P.tolist()) == set(range(1, 16))


def test_mean_tvd_of_the_uniform_guess_is_one_half():
    """|1/v - 1/(v-i)| over the absent and 1/v over the present: i/v at length i."""
    task = SetComplement(9)
    validation = task.validation(0, "report")
    p_star = task.p_star(validation.inputs_NxL)[validation.scored_NxL]
    tvd = 0.5 * np.abs(p_star - 1 / 9).sum(-1)
    assert np.allclose(tvd, validation.length_P / 9)


def test_bad_sizes():
    with pytest.raises(ValueError, match="at least 2 tokens"):
        SetComplement(1)
    with pytest.raises(ValueError, match=r"1\.\.8"):
        SetComplement(9).check_train_length(9)
