"""A task of one's own: two functions, and the rest follows."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import resharpen as rs
from resharpen import streams


@dataclass(frozen=True)
class Die(rs.TokenTask):
    """A fair die of so many sides, after an opening token."""

    sides: int

    kind: ClassVar[str] = "die"
    sequences: ClassVar[int] = 5
    longest: ClassVar[int] = 12

    @property
    def name(self) -> str:
        return f"die-{self.sides}"

    @property
    def vocabulary(self) -> int:
        return self.sides + 1

    @property
    def opening(self) -> int:
        return self.sides

    def sample(self, words_NxT):
        return rs.below(words_NxT, self.sides)

    def p_star(self, inputs_NxL):
        p = np.full((*inputs_NxL.shape, self.vocabulary), 1 / self.sides)
        p[..., -1] = 0
        return p


def test_a_batch_of_a_token_task():
    task = Die(6)
    inputs, targets, mask = task.batch(streams.key(0, "t"), 1, 2, 7, 4)
    assert inputs.shape == targets.shape == mask.shape == (7, 4)
    assert mask.all()
    assert (inputs[:, 0] == 6).all()
    assert (inputs[:, 1:] == targets[:, :-1]).all()
    assert (targets < 6).all()
    again, other = (task.batch(streams.key(0, "t"), 1, step, 7, 4).targets for step in (2, 3))
    assert (targets == again).all()
    assert (targets != other).any()


def test_validation_of_a_token_task():
    task = Die(6)
    selection, report = (task.validation(0, use) for use in ("selection", "report"))
    assert selection.inputs_NxL.shape == (5, 12)
    assert (selection.inputs_NxL != report.inputs_NxL).any()
    examples = task.examples(report)
    assert examples.truth["p_star"].shape == (5 * 12, 7)
    found = task.by_length({"tvd": np.stack([report.length_P / 2, report.length_P / 4])}, report)
    lengths, values, counts = found["tvd"]
    assert lengths.tolist() == list(range(1, 13))
    assert np.allclose(values, [np.arange(1, 13) / 2, np.arange(1, 13) / 4])
    assert (counts == 5).all()


def test_training_lengths_of_a_token_task():
    Die(6).check_train_length(12)
    for length in (0, 13):
        with pytest.raises(ValueError, match=rf"training length {length}: for die-6 1\.\.12"):
            Die(6).check_train_length(length)


def test_a_task_from_a_table():
    assert Die.from_data({"sides": 3}) == Die(3)
    assert Die.from_data(Die(4).as_data()) == Die(4)
    with pytest.raises(rs.UserError, match=r"unknown key in \[task\] 'side': did you mean 'sides'"):
        Die.from_data({"side": 3})
    with pytest.raises(rs.UserError, match="needs 'sides'"):
        Die.from_data({})
    with pytest.raises(rs.UserError, match="sides = '3': must be a whole number"):
        Die.from_data({"sides": "3"})


def die(**functions):
    """A die of four faces, without an opening token, with something else in it."""
    plain = {
        "opening": None,
        "vocabulary": 4,
        "sample": lambda self, words: rs.below(words, 4),
        "p_star": lambda self, inputs: np.full((*inputs.shape, 4), 0.25),
    }
    return type("Loaded", (Die,), plain | functions)(4)


@pytest.mark.parametrize(
    ("p_star", "message"),
    [
        (lambda self, x: np.full((*x.shape, 3), 1 / 3), r"p_star has the shape \[5, 12, 3\], not \[5, 12, 4\]"),
        (lambda self, x: None, r"p_star has the shape \[\], not \[5, 12, 4\]"),
        (lambda self, x: np.ones((*x.shape, 4)), "p_star sums to 4 over the tokens: it must sum to 1"),
        (lambda self, x: np.full((*x.shape, 4), np.nan), "p_star has values that are no probabilities"),
        (lambda self, x: np.tile([1.5, -0.5, 0, 0], (*x.shape, 1)), "p_star has values that are no probabilities"),
        (lambda self, x: np.full((*x.shape, 4), "1"), "p_star has values that are no probabilities"),
    ],
)
def test_a_wrong_distribution_is_one_line(p_star, message):
    task = die(p_star=p_star)
    with pytest.raises(rs.UserError, match=f"task 'die-4': {message}"):
        task.examples(task.validation(0, "report"))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sample": lambda self, words: rs.below(words, 6)}, r"its tokens are 0\.\.5, the vocabulary has 0\.\.3"),
        ({"sample": lambda self, words: rs.below(words, 4) - 1}, r"its tokens are -1\.\.2"),
        ({"opening": 4}, r"its tokens are 0\.\.4"),
        ({"sample": lambda self, words: rs.below(words, 4)[:, :-1]}, r"sample gives \[5, 11\] of int64, not \[5, 12\]"),
        ({"sample": lambda self, words: words / 2**32}, r"sample gives \[5, 12\] of float64"),
    ],
)
def test_wrong_tokens_are_one_line(wrong, message):
    with pytest.raises(rs.UserError, match=f"task 'die-4': {message}"):
        die(**wrong).validation(0, "report")


def test_single_precision_and_certainty_will_do():
    for p_star in (lambda self, x: np.full((*x.shape, 4), np.float32(0.25)), lambda self, x: np.eye(4, dtype=bool)[x]):
        task = die(p_star=p_star)
        assert task.examples(task.validation(0, "report")).truth["p_star"].dtype == np.float64
