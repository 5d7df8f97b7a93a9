"""Counter: equal numbers of a, b, c and d, in this order.

With three letters, after a a b b c comes c, and after a a b b c c the end:

    >>> import numpy as np
    >>> task = Counter(3)
    >>> [int(p.argmax()) for p in task.p_star(np.array([[0, 0, 1, 1, 2, 2]]))[0][-2:]]  # tokens a, b, c, EOS
    [2, 3]

Another a follows with probability 24/25, so there are 25 of them on average; the rest is determined.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from resharpen.tasks.task import NOTHING, Tokens, TokenTask

STOP = 1 / 25
"""The probability that an a is the last one."""


class Counting(TokenTask):
    """Words of several lengths that counters can tell from others."""

    published: ClassVar[str] = "Bhattamishra et al. 2020: transformers generalize to longer words"
    varied: ClassVar[bool] = True
    bin_width: ClassVar[int] = 10

    @property
    def usual_train_length(self) -> int:
        return 50


@dataclass(frozen=True)
class Counter(Counting):
    letters: int = 2

    kind: ClassVar[str] = "counter"
    asked: ClassVar[str] = "equally many of two to four letters: a^n b^n, a^n b^n c^n, a^n b^n c^n d^n"
    answer: ClassVar[str] = "another a with 24/25; from the first b on every token is determined, including EOS"
    shown_metric: ClassVar[str] = "error"
    sequences: ClassVar[int] = 512

    def __post_init__(self) -> None:
        if self.letters not in (2, 3, 4):
            raise ValueError(f"letters = {self.letters}: 2, 3 or 4")

    @property
    def name(self) -> str:
        return f"counter-{self.letters}"

    @property
    def title(self) -> str:
        return " ".join(f"{letter}^n" for letter in self.token_names[:-1])

    @property
    def opening(self) -> int:
        """Every word begins with a."""
        return 0

    @property
    def vocabulary(self) -> int:
        return self.letters + 1

    @property
    def token_names(self) -> tuple[str, ...]:
        return (*"abcd"[: self.letters], "EOS")

    def sample(self, words_NxT: NDArray[np.uint32]) -> Tokens:
        """The first word decides on n, by inversion."""
        uniform_Nx1 = (words_NxT[:, :1] + 0.5) * 2.0**-32
        n_Nx1 = 1 + np.floor(np.log(uniform_Nx1) / np.log1p(-STOP)).astype(np.int64)
        at_T = np.arange(1, words_NxT.shape[1] + 1)
        return np.where(at_T <= self.letters * n_Nx1, at_T // n_Nx1, NOTHING)

    def p_star(self, inputs_NxL: Tokens) -> NDArray[np.float64]:
        """The exact next-token distribution after every prefix, [N, L, V]."""
        only_a_NxL = np.maximum.accumulate(inputs_NxL, axis=1) == 0
        n_NxL = np.where(inputs_NxL == 0, 1, 0).cumsum(axis=1).clip(1)
        determined_NxL = (np.arange(1, inputs_NxL.shape[1] + 1) // n_NxL).clip(0, self.letters)
        go_on_V = np.eye(self.vocabulary)[0] * (1 - STOP) + np.eye(self.vocabulary)[1] * STOP
        return np.where(only_a_NxL[..., None], go_on_V, np.eye(self.vocabulary)[determined_NxL])
