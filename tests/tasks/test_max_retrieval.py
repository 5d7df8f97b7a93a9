from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from resharpen import streams
from resharpen.tasks.max_retrieval import MaxRetrieval, RetrievalSet

TASK = MaxRetrieval()
SMALL = MaxRetrieval(longest=64, items=512, selection_items=256)


def naive_label(priority, kinds):
    best = 0
    for i in range(len(priority)):
        if priority[i] > priority[best]:
            best = i
    return kinds[best]


@given(st.integers(0, 50), st.integers(0, 1000), st.integers(1, 9), st.integers(5, 20))
def test_a_minibatch_is_what_it_says(group, step, n, s):
    (priority, kinds, lengths), labels, mask = TASK.batch(streams.key(0, "t"), group, step, n, s)
    assert mask.shape == labels.shape == (n,)
    assert mask.all()
    assert priority.shape == kinds.shape == (n, s)
    assert priority.dtype == np.float32
    for row in range(n):
        length = lengths[row]
        assert 5 <= length <= s
        assert (priority[row, length:] == 0).all()
        assert (kinds[row, length:] == 0).all()
        assert labels[row] == naive_label(priority[row, :length], kinds[row, :length])
    assert priority.min() >= 0
    assert priority.max() < 1
    assert kinds.min() >= 0
    assert kinds.max() < 10


def test_priorities_are_the_top_24_bits_of_a_word():
    words = np.array([[[0xFFFFFFFF, 0], [0x100, 0xFFFFFFFF], [0xFF, 0x1999999A]]], np.uint32)
    priority, kinds = TASK.sample(words)
    assert priority.astype(np.float64).tolist() == [[1 - 2.0**-24, 2.0**-24, 0.0]]
    assert kinds.tolist() == [[0, 9, 1]]


def test_the_earliest_of_equal_priorities_counts():
    priority = np.array([[0.5, 0.75, 0.75, 0.25], [0.0, 0.0, 0.0, 0.0]])
    kinds = np.array([[1, 2, 3, 4], [5, 6, 7, 8]])
    assert TASK.labels(priority, kinds, np.array([4, 4])).tolist() == [2, 5]


def test_padding_never_decides():
    priority = np.array([[0.1, 0.2, 0.9]])
    assert TASK.labels(priority, np.array([[1, 2, 3]]), np.array([2])).tolist() == [2]


def test_everything_is_uniform():
    (priority, kinds, lengths), labels, _ = TASK.batch(streams.key(7, "uniform"), 0, 0, 6000, 16)
    real = np.arange(16) < lengths[:, None]
    assert chisquare(np.bincount(lengths)[5:]).pvalue > 1e-4
    assert chisquare(np.bincount(kinds[real])).pvalue > 1e-4
    assert chisquare(np.bincount(labels)).pvalue > 1e-4
    assert chisquare(np.histogram(priority[real], bins=20, range=(0, 1))[0]).pvalue > 1e-4


def test_validation_sets():
    """As many items at every length, in sixteen sequences at least."""
    selection, report = (TASK.validation(0, use) for use in ("selection", "report"))

    def lengths(validation):
        return dict(zip(*(x.tolist() for x in np.unique(validation.length_P, return_counts=True)), strict=True))

    assert lengths(selection) == {2**i: 8_192 // 2**i if i < 10 else 16 for i in range(4, 11)}
    assert lengths(report) == {2**i: 65_536 // 2**i for i in range(4, 13)}
    assert list(lengths(MaxRetrieval(longest=16_384).validation(0, "report")))[-2:] == [8192, 16384]
    assert lengths(SMALL.validation(0, "selection")) == {16: 16, 32: 16, 64: 16}


def test_a_set_does_not_depend_on_how_it_is_read():
    """Whole, in pieces, or with more items: the same sequences, and a piece is no larger than asked for."""
    whole = SMALL.validation(3, "report")
    items, scored, truth = SMALL.examples(whole)
    got = [SMALL.examples(piece) for piece in whole.pieces(70)]
    assert scored.all()
    assert all(piece.inputs.priority.size <= 70 for piece in got)
    assert np.array_equal(np.concatenate([piece.inputs.length for piece in got]), whole.length_P)
    assert np.array_equal(np.concatenate([piece.truth["label"] for piece in got]), truth["label"])
    rows = [row for piece in got for row in piece.inputs.priority]
    assert all(np.array_equal(row, wide[: len(row)]) for row, wide in zip(rows, items.priority, strict=True))
    larger = SMALL.examples(replace(SMALL, items=1024).validation(3, "report")).inputs
    assert (larger.length[:64] == 16).all()
    assert np.array_equal(larger.priority[:32], items.priority[:32])


def test_sets_differ_by_use_seed_and_length():
    def first(seed, use, length):
        full = SMALL.validation(seed, use)
        return TASK.examples(RetrievalSet(full.key, ((length, 0, 1),))).inputs.priority[0, :16].tolist()

    seen = [first(0, "selection", 16), first(0, "report", 16), first(1, "selection", 16), first(0, "selection", 32)]
    assert len({tuple(row) for row in seen}) == 4


def test_bad_sizes():
    with pytest.raises(ValueError, match="5 to s items"):
        TASK.check_train_length(4)
    with pytest.raises(ValueError, match="must be at least 2"):
        MaxRetrieval(classes=1)
    for name, least in (("longest", 16), ("items", 1), ("selection_items", 1)):
        with pytest.raises(ValueError, match=f"{name} = {least - 1}: at least {least}"):
            MaxRetrieval(**{name: least - 1})
