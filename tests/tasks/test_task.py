"""A task of one's own: two functions, and the rest follows."""

from dataclasses import dataclass, replace
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
        (lambda self, x: np.full((*x.shape, 4), np.nan), "p_star has values that are not probabilities"),
        (lambda self, x: np.tile([1.5, -0.5, 0, 0], (*x.shape, 1)), "p_star has values that are not probabilities"),
        (lambda self, x: np.full((*x.shape, 4), "1"), "p_star has values that are not probabilities"),
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
        (
            {"sample": lambda self, words: rs.below(words, 4)[:, :-1]},
            r"sample returns \[5, 11\] of int64, not \[5, 12\]",
        ),
        ({"sample": lambda self, words: words / 2**32}, r"sample returns \[5, 12\] of float64"),
    ],
)
def test_wrong_tokens_are_one_line(wrong, message):
    with pytest.raises(rs.UserError, match=f"task 'die-4': {message}"):
        die(**wrong).validation(0, "report")


def test_single_precision_and_certainty_will_do():
    for p_star in (lambda self, x: np.full((*x.shape, 4), np.float32(0.25)), lambda self, x: np.eye(4, dtype=bool)[x]):
        task = die(p_star=p_star)
        assert task.examples(task.validation(0, "report")).truth["p_star"].dtype == np.float64


@dataclass(frozen=True)
class Echo(Die):
    """Three items, then the same again: a question and its answer, which alone is trained and scored."""

    longest: ClassVar[int] = 6

    def sample(self, words_NxT):
        tokens = rs.below(words_NxT, self.sides)
        tokens[:, 3:] = tokens[:, : tokens.shape[1] - 3]
        return tokens

    def p_star(self, inputs_NxL):
        p = np.full((*inputs_NxL.shape, self.vocabulary), 1 / self.sides)
        p[..., -1] = 0
        for i in range(3, inputs_NxL.shape[1]):
            p[:, i] = np.eye(self.vocabulary)[inputs_NxL[:, i - 2]]
        return p

    def answers(self, inputs_NxL):
        return np.broadcast_to(np.arange(inputs_NxL.shape[1]) >= 3, inputs_NxL.shape)

    trained_places = scored_places = answers

    def place_lengths(self, inputs_NxL):
        return np.full(inputs_NxL.shape, 3)


def test_a_task_says_where_the_loss_counts_and_where_it_is_scored():
    task = Echo(4)
    inputs, targets, mask = task.batch(streams.key(0, "t"), 0, 0, 7, 6)
    assert (mask == (np.arange(6) >= 3)).all()
    assert (targets[:, 3:5] == inputs[:, 1:3]).all()
    report = task.validation(0, "report")
    assert len(report.length_P) == 5 * 3
    assert set(report.length_P) == {3}
    p_star = task.examples(report).truth["p_star"]
    assert (p_star.max(-1) == 1).all()
    wrong = np.zeros((2, 15))
    wrong[1, 4] = 1  # one token of the second answer
    found = task.by_length({"error": wrong, "tvd": wrong}, report)
    assert found["error"][1].tolist() == [[0], [pytest.approx(1 / 15)]]
    assert found["exact"][1].tolist() == [[1], [pytest.approx(4 / 5)]]
    assert found["exact"][2].tolist() == [5]


def test_a_masked_loss_is_trained_by_both_engines_and_ignores_the_rest():
    """A gradient step does not depend on targets outside the mask."""
    from helpers import make_ensemble, minimal_problem, transformer_problem

    from resharpen.engines.choose import make_engine, why_not_native
    from resharpen.models import Transformer

    task = Echo(4)
    problem = transformer_problem("pre", model=Transformer(5, layers=1, d=8, heads=1, d_mlp=8), task=task, cap=6)
    assert why_not_native(problem) == ""
    late = type("Late", (rs.SetComplement,), {"trained_places": lambda self, x: np.arange(x.shape[1]) > x[:, :1]})
    assert "samples differently" in why_not_native(replace(minimal_problem("peri"), task=late(9)))
    batch = problem.minibatch(0, 0)
    other = batch._replace(targets=np.where(batch.mask, batch.targets, (batch.targets + 1) % 5))
    for name in ("torch", "native"):
        states = []
        for given in (batch, other):
            engine = make_engine(name, problem, make_ensemble(problem, 2))
            engine.advance(1, [given])
            states.append(engine.dump())
        assert all(np.array_equal(states[0][name], states[1][name]) for name in states[0])


def test_minibatches_of_several_steps_are_those_of_each():
    from helpers import transformer_problem

    for task in (Echo(4), die(opening=None), rs.SetComplement(9)):
        problem = transformer_problem(task=task, cap=5, batch=7)
        for i, together in enumerate(problem.minibatches(3, 11, 4)):
            for a, b in zip(together, problem.minibatch(3, 11 + i), strict=True):
                assert np.array_equal(a, b)


def test_a_minibatch_without_a_trained_place_is_one_line():
    from helpers import transformer_problem

    sometimes = die(trained_places=lambda self, x: np.broadcast_to(x[:, :1] == 0, x.shape))
    problem = transformer_problem(task=sometimes, cap=4, batch=1)
    with pytest.raises(rs.UserError, match="task 'die-4': a minibatch of 1 sequences has no trained place"):
        problem.minibatches(0, 0, 40)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"trained_places": lambda self, x: np.zeros(x.shape, bool)}, "trained_places is false everywhere"),
        ({"trained_places": lambda self, x: np.ones(x.shape)}, r"trained_places returns \[3, 4\] of float64, not"),
        ({"trained_places": lambda self, x: np.ones(3, bool)}, r"trained_places returns \[3\] of bool, not \[3, 4\]"),
    ],
)
def test_wrong_masks_are_one_line(wrong, message):
    with pytest.raises(rs.UserError, match=f"task 'die-4': {message}"):
        die(**wrong).batch(streams.key(0, "t"), 0, 0, 3, 4)
    scored = {"scored_places": wrong["trained_places"]}
    with pytest.raises(rs.UserError, match="task 'die-4': scored_places"):
        die(**scored).validation(0, "report")
