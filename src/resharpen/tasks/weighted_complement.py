"""Weighted Complement: Set Complement with weights, sampling without replacement from tokens of unequal weight.

Token t has the weight ratio^t. With v = 4 and ratio 2 the weights are 1, 2, 4, 8; after 2, 0 the next token is 1 with
2/10 or 3 with 8/10:

    >>> WeightedComplement(4, ratio=2.0).p_star(np.array([[2, 0]]))[0, -1].tolist()
    [0.0, 0.2, 0.0, 0.8]

With ratio 1 it is Set Complement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from resharpen.tasks.task import Tokens, TokenTask

WIDEST = 1e9
"""The largest ratio of two weights."""


@dataclass(frozen=True)
class WeightedComplement(TokenTask):
    v: int = 16
    ratio: float = 0.8

    kind: ClassVar[str] = "weighted-complement"
    asked: ClassVar[str] = "a token that has not occurred yet, where tokens have unequal weights"
    answer: ClassVar[str] = "an absent token by its weight, ratio^t over the sum of the weights of all absent ones"
    published: ClassVar[str] = "new here; ratio 1 is Set Complement, the paper"
    sets: ClassVar[bool] = True
    sequences: ClassVar[int] = 512

    def __post_init__(self) -> None:
        if self.v < 2:
            raise ValueError(f"v = {self.v}: the set needs at least 2 tokens")
        if not (self.ratio > 0 and abs(np.log(self.ratio)) * (self.v - 1) <= np.log(WIDEST)):
            raise ValueError(f"ratio = {self.ratio}: must be above 0, with weights within a factor of {WIDEST:.0e}")

    @property
    def name(self) -> str:
        return f"wct-v{self.v}-r{self.ratio:g}"

    @property
    def title(self) -> str:
        return f"Weighted Complement, v = {self.v}, ratio {self.ratio:g}"

    @property
    def vocabulary(self) -> int:
        return self.v

    @property
    def longest(self) -> int:
        return self.v - 1

    @property
    def usual_train_length(self) -> int:
        return self.v // 2

    @property
    def weight_V(self) -> NDArray[np.float64]:
        return np.float64(self.ratio) ** np.arange(self.v)

    def sample(self, words_NxT: NDArray[np.uint32]) -> Tokens:
        tokens_NxT, row_N = np.empty(words_NxT.shape, np.int64), np.arange(len(words_NxT))
        weight_NxV, uniform_NxT = np.tile(self.weight_V, (len(words_NxT), 1)), words_NxT * 2.0**-32
        for i in range(words_NxT.shape[1]):
            reached_NxV = weight_NxV.cumsum(axis=1)
            token_N = (reached_NxV > uniform_NxT[:, i, None] * reached_NxV[:, -1:]).argmax(axis=1)
            weight_NxV[row_N, token_N] = 0
            tokens_NxT[:, i] = token_N
        return tokens_NxT

    def p_star(self, inputs_NxL: Tokens) -> NDArray[np.float64]:
        """The exact next-token distribution after every prefix, [N, L, V]."""
        absent_NxLxV = np.eye(self.v, dtype=bool)[inputs_NxL].cumsum(axis=1) == 0
        left_NxLxV = absent_NxLxV * self.weight_V
        total_NxLx1 = left_NxLxV.sum(axis=2, keepdims=True)
        return left_NxLxV / np.where(total_NxLx1 > 0, total_NxLx1, 1)
