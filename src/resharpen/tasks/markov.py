"""Markov: every sequence has its own Markov chain, whose transitions must be inferred from the sequence.

Rows of the transition matrix are drawn from a Dirichlet(alpha). With v = 2 and alpha = 1, after 0 1 0 1 0 the token 0
was twice followed by 1 and never by 0, so p* is (0 + 1)/(2 + 2) and (2 + 1)/(2 + 2):

    >>> Markov(2, alpha=1.0).p_star(np.array([[0, 1, 0, 1, 0]]))[0, -1].tolist()
    [0.25, 0.75]

In general p*(t) = (n_ct + alpha) / (n_c + v alpha) after c, with n_ct the times that t followed c so far. The first
token is uniform.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from resharpen import streams
from resharpen.tasks.task import Tokens, TokenTask


@dataclass(frozen=True)
class Markov(TokenTask):
    v: int = 4
    alpha: float = 0.5

    kind: ClassVar[str] = "markov"
    asked: ClassVar[str] = "the next state of a Markov chain that differs in every sequence"
    answer: ClassVar[str] = "(n_ct + alpha) / (n_c + v alpha): the transitions so far, smoothed"
    published: ClassVar[str] = "Edelman et al. 2024: induction heads emerge in stages"
    sequences: ClassVar[int] = 128
    bin_width: ClassVar[int] = 16

    def __post_init__(self) -> None:
        if self.v < 2:
            raise ValueError(f"v = {self.v}: at least 2 tokens")
        if not 1e-3 <= self.alpha <= 1e3:
            raise ValueError(f"alpha = {self.alpha}: from 0.001 to 1000")

    @property
    def name(self) -> str:
        return f"markov-v{self.v}-a{self.alpha:g}"

    @property
    def title(self) -> str:
        return f"Markov chains, v = {self.v}, alpha = {self.alpha:g}"

    @property
    def usual_train_length(self) -> int:
        return 64

    @property
    def vocabulary(self) -> int:
        return self.v

    def sample(self, words_NxT: NDArray[np.uint32]) -> Tokens:
        """Sample tokens from p*, which is equivalent to sampling a matrix first and then the tokens."""
        tokens_NxT, row_N = np.empty(words_NxT.shape, np.int64), np.arange(len(words_NxT))
        weight_NxVxV = np.full((len(words_NxT), self.v, self.v), self.alpha)
        uniform_NxT = words_NxT * 2.0**-32
        tokens_NxT[:, 0] = streams.below(words_NxT[:, 0], self.v)
        for i in range(1, words_NxT.shape[1]):
            last_N = tokens_NxT[:, i - 1]
            reached_NxV = weight_NxVxV[row_N, last_N].cumsum(axis=1)
            token_N = (reached_NxV[:, :-1] <= uniform_NxT[:, i, None] * reached_NxV[:, -1:]).sum(axis=1)
            weight_NxVxV[row_N, last_N, token_N] += 1
            tokens_NxT[:, i] = token_N
        return tokens_NxT

    def p_star(self, inputs_NxL: Tokens) -> NDArray[np.float64]:
        """The exact next-token distribution after every prefix, [N, L, V]."""
        weight_NxVxV, row_N = np.full((len(inputs_NxL), self.v, self.v), self.alpha), np.arange(len(inputs_NxL))
        p_NxLxV = np.empty((*inputs_NxL.shape, self.v))
        for i in range(inputs_NxL.shape[1]):
            if i:
                weight_NxVxV[row_N, inputs_NxL[:, i - 1], inputs_NxL[:, i]] += 1
            p_NxLxV[:, i] = weight_NxVxV[row_N, inputs_NxL[:, i]]
        return p_NxLxV / p_NxLxV.sum(axis=2, keepdims=True)
