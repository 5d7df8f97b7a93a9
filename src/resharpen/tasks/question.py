"""Tasks with a question of n items and its answer.

n is uniform on 1 .. n_train in training; an answer is reported at length n. Validation uses twelve values of n up to
three times the largest one in training, with equally many sequences of each. Only the answer is trained and scored.

Shapes: N sequences, L positions, V tokens, T tokens of a sequence without the opening one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from resharpen import streams
from resharpen.plain import build
from resharpen.tasks.task import NOTHING, Tokens, TokenTask
from resharpen.tasks.validation import ValidationSet

VALIDATED, LONGER = 12, 3
"""Number of values of n in validation, and the largest as a multiple of the largest n in training."""


@dataclass(frozen=True, kw_only=True)
class QuestionTask(TokenTask, ABC):
    """A subclass defines the number of tokens of n items, `per_item` n + `besides`, and samples sequences in `ask`."""

    train_items: int = 16
    """The largest n in training; the training length of a setting may be shorter."""

    varied: ClassVar[bool] = True
    unit: ClassVar[str] = "items"
    scored: ClassVar[str] = "places"
    knows_training: ClassVar[bool] = True
    sequences: ClassVar[int] = 128
    """Sequences per n in the report set."""
    selection_sequences: ClassVar[int] = 32
    per_item: ClassVar[int]
    besides: ClassVar[int]
    """Tokens of a sequence besides those of its items, including the opening one."""

    def __post_init__(self) -> None:
        if self.train_items < 1:
            raise ValueError(f"train_items = {self.train_items}: at least 1")

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        given = {"train_items": data["train_length"], **data} if "train_length" in data else data
        return build(cls, {name: value for name, value in given.items() if name != "train_length"}, "[task]")

    @abstractmethod
    def ask(self, words_NxT: NDArray[np.uint32], n_N: Tokens) -> Tokens:
        """Sequences with questions of n items, [N, T], without the opening token; the first word is not used."""

    @abstractmethod
    def answers(self, inputs_NxL: Tokens) -> NDArray[np.bool_]:
        """Places at which the answer is predicted, [N, L]."""

    @abstractmethod
    def items(self, inputs_NxL: Tokens) -> Tokens:
        """The number of items in the question, or so far, [N]."""

    @property
    def most_items(self) -> float:
        """The most items that a question can have."""
        return np.inf

    @property
    def longest(self) -> int:
        return int(min(LONGER * self.train_items, self.most_items))

    @property
    def validated(self) -> list[int]:
        every = np.rint(self.train_items * LONGER * np.arange(1, VALIDATED + 1) / VALIDATED)
        return sorted({max(1, min(int(n), self.longest)) for n in every})

    @property
    def usual_train_length(self) -> int:
        return self.train_items

    def marks(self, train_length: int) -> dict[str, int]:
        return {"most items in training": train_length}

    def input_tokens(self, length: int) -> int:
        return self.per_item * length + self.besides - 1

    def sample(self, words_NxT: NDArray[np.uint32]) -> Tokens:
        """The first random word selects n, at most as large as the number of words allows."""
        return self.ask(words_NxT, 1 + streams.below(words_NxT[:, 0], self.most_of(words_NxT)))

    def most_of(self, words_NxT: NDArray[np.uint32]) -> int:
        """The largest n for which there are enough words, one per token."""
        return (words_NxT.shape[1] + (self.opening is not None) - self.besides) // self.per_item

    def trained_places(self, inputs_NxL: Tokens) -> NDArray[np.bool_]:
        return self.answers(inputs_NxL)

    def scored_places(self, inputs_NxL: Tokens) -> NDArray[np.bool_]:
        return self.answers(inputs_NxL)

    def place_lengths(self, inputs_NxL: Tokens) -> Tokens:
        return np.broadcast_to(self.items(inputs_NxL).clip(1)[:, None], inputs_NxL.shape)

    def validation(self, seed: int, use: str) -> ValidationSet:
        key = streams.key(seed, self.name, "validation", use)
        many = (self.report_sequences or self.sequences) if use == "report" else self.selection_sequences
        width, rows = self.input_tokens(self.longest) + 1, []
        for n in self.validated:
            drawn = self.input_tokens(n) + 1 - (self.opening is not None)
            tokens = self.ask(streams.words(key, drawn, np.arange(many), n), np.full(many, n))
            opening = [] if self.opening is None else [np.full((many, 1), self.opening)]
            tokens = np.concatenate([*opening, tokens], axis=1)
            rows.append(np.pad(tokens, ((0, 0), (0, width - tokens.shape[1])), constant_values=NOTHING))
        inputs, _, scored = self._batch(np.concatenate(rows), "scored_places")
        return ValidationSet(inputs, scored, self._lengths(inputs))


class SeparatedTask(QuestionTask):
    """BOS, the items, SEP, the answer. Items are tokens 0 .. v-1."""

    v: int
    besides: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.v < 2:
            raise ValueError(f"v = {self.v}: at least 2 tokens to choose from")

    @property
    def distinct(self) -> bool:
        """Whether the items of a question are distinct."""
        return True

    @property
    def most_items(self) -> float:
        return self.v if self.distinct else np.inf

    @property
    def opening(self) -> int:
        return self.v

    @property
    def separator(self) -> int:
        return self.v + 1

    @property
    def vocabulary(self) -> int:
        return self.v + 2

    @property
    def token_names(self) -> tuple[str, ...]:
        return (*map(str, range(self.v)), "BOS", "SEP")

    @abstractmethod
    def reply(self, words_NxT: NDArray[np.uint32], items_NxI: Tokens, real_NxI: NDArray[np.bool_]) -> Tokens:
        """The answer, [N, A], and anything after it. Only the first n items are real."""

    @abstractmethod
    def answer_p(self, inputs_NxL: Tokens, n_N: Tokens) -> NDArray[np.float64]:
        """p* at every place as if it belonged to the answer, [N, L, V]; the question has n items."""

    def ask(self, words_NxT: NDArray[np.uint32], n_N: Tokens) -> Tokens:
        words_NxI, n_Nx1 = words_NxT[:, 1 : 1 + self.most_of(words_NxT)], n_N[:, None]
        items_NxI = distinct(words_NxI, self.v) if self.distinct else streams.below(words_NxI, self.v)
        real_NxI = np.arange(items_NxI.shape[1]) < n_Nx1
        answer_NxA = self.reply(words_NxT, items_NxI, real_NxI)
        tokens_NxT = np.full(words_NxT.shape, NOTHING)
        tokens_NxT[:, : items_NxI.shape[1]] = np.where(real_NxI, items_NxI, NOTHING)
        np.put_along_axis(tokens_NxT, n_Nx1, self.separator, axis=1)
        row, at = np.nonzero(np.arange(answer_NxA.shape[1]) < self.per_item * n_Nx1 + self.besides - 2 - n_Nx1)
        tokens_NxT[row, n_N[row] + 1 + at] = answer_NxA[row, at]
        return tokens_NxT

    def answers(self, inputs_NxL: Tokens) -> NDArray[np.bool_]:
        return (inputs_NxL == self.separator).cumsum(axis=1) > 0

    def items(self, inputs_NxL: Tokens) -> Tokens:
        return (~self.answers(inputs_NxL)).sum(axis=1) - 1

    def p_star(self, inputs_NxL: Tokens) -> NDArray[np.float64]:
        """The exact next-token distribution after every prefix, [N, L, V]: in a question SEP with the hazard of an n
        that is uniform on 1 .. train_items, else a new item."""
        so_far_L = np.arange(inputs_NxL.shape[1])
        present_NxLxV = np.eye(self.vocabulary, dtype=bool)[inputs_NxL][..., : self.v].cumsum(axis=1) > 0
        free_NxLxV = ~present_NxLxV if self.distinct else np.ones_like(present_NxLxV)
        stop_Lx1 = hazard(so_far_L, self.train_items)[:, None]
        item_NxLxV = free_NxLxV / free_NxLxV.sum(-1, keepdims=True).clip(1) * (1 - stop_Lx1)
        stop_NxLx1 = np.broadcast_to(stop_Lx1, (*inputs_NxL.shape, 1))
        question_NxLxV = np.concatenate([item_NxLxV, np.zeros_like(stop_NxLx1), stop_NxLx1], axis=2)
        answered_NxLx1 = self.answers(inputs_NxL)[..., None]
        return np.where(answered_NxLx1, self.answer_p(inputs_NxL, self.items(inputs_NxL)), question_NxLxV)


def hazard(so_far: ArrayLike, most: int) -> NDArray[np.float64]:
    """The probability that a question ends after `so_far` items, such that n is uniform on 1 .. most.

    >>> hazard([0, 1, 2, 3], 3).round(3).tolist()
    [0.0, 0.333, 0.5, 1.0]
    """
    so_far = np.asarray(so_far)
    return np.where(so_far > 0, 1 / np.maximum(1, most - so_far + 1), 0.0)


def distinct(words_NxT: NDArray[np.uint32], v: int) -> Tokens:
    """T distinct numbers below v, uniform without replacement, [N, T]: Fisher and Yates."""
    pool_NxV, row_N = np.tile(np.arange(v), (len(words_NxT), 1)), np.arange(len(words_NxT))
    for i in range(words_NxT.shape[1]):
        at_N = i + streams.below(words_NxT[:, i], v - i)
        pool_NxV[row_N, at_N], pool_NxV[:, i] = pool_NxV[:, i].copy(), pool_NxV[row_N, at_N]
    return pool_NxV[:, : words_NxT.shape[1]]
