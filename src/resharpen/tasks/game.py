"""Game (m, n, k): two players in turn take empty cells of an m by n board at random; k in a row end it.

(3, 3, 3) is tic-tac-toe, cells numbered row by row. After 0 3 1 4 any other cell is as likely; after a further 2 the
first player has the top row, and the game is over:

    >>> import numpy as np
    >>> p = Game(3, 3, 3).p_star(np.array([[0, 3, 1, 4, 2]]))[0]
    >>> p[3].round(1).tolist(), p[4].tolist()  # tokens 0 .. 8, EOS
    ([0.0, 0.0, 0.2, 0.0, 0.0, 0.2, 0.2, 0.2, 0.2, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0])

A full board also ends the game. Apart from its end, this is Set Complement on m n tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from resharpen.tasks.question import distinct
from resharpen.tasks.task import NOTHING, Tokens, TokenTask

MOST_CELLS = 225
NEVER = 10**6


@dataclass(frozen=True)
class Game(TokenTask):
    m: int = 4
    n: int = 4
    k: int = 4

    kind: ClassVar[str] = "game"
    asked: ClassVar[str] = "the next move of two random players on an m by n board, and when k in a row end the game"
    answer: ClassVar[str] = "all empty cells equally likely; EOS where one player has k in a row or the board is full"
    published: ClassVar[str] = "new here; 3, 3, 3 is tic-tac-toe"
    varied: ClassVar[bool] = True
    unit: ClassVar[str] = "moves"
    sequences: ClassVar[int] = 512

    def __post_init__(self) -> None:
        if min(self.m, self.n, self.k) < 1 or self.k > max(self.m, self.n) or self.cells > MOST_CELLS:
            sizes = f"at least one cell, at most {MOST_CELLS}, and k no longer than the longer side"
            raise ValueError(f"Game({self.m}, {self.n}, {self.k}): {sizes}")

    @property
    def cells(self) -> int:
        return self.m * self.n

    @property
    def name(self) -> str:
        return f"game-{self.m}-{self.n}-{self.k}"

    @property
    def title(self) -> str:
        return f"{self.k} in a row on {self.m} by {self.n}"

    @property
    def vocabulary(self) -> int:
        return self.cells + 1

    @property
    def token_names(self) -> tuple[str, ...]:
        return (*map(str, range(self.cells)), "EOS")

    @property
    def longest(self) -> int:
        return self.cells

    @property
    def usual_train_length(self) -> int:
        return max(1, 3 * self.cells // 4)

    @cached_property
    def lines(self) -> NDArray[np.int64]:
        """The cells of every k in a row, [lines, k]."""
        found = []
        for row, column in np.ndindex(self.m, self.n):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                rows, columns = row + down * np.arange(self.k), column + right * np.arange(self.k)
                if rows[-1] < self.m and 0 <= columns[-1] < self.n:
                    found.append(rows * self.n + columns)
        return np.array(found)

    def last_move(self, moves_NxL: Tokens) -> Tokens:
        """The number of the move, from 0 on, that ends each game; NEVER if none of these does."""
        when_NxC = np.full((len(moves_NxL), self.cells + 1), NEVER)
        row_N = np.arange(len(moves_NxL))
        for i in reversed(range(moves_NxL.shape[1])):  # backwards, so that the first occurrence of a cell counts
            when_NxC[row_N, moves_NxL[:, i]] = i
        when_NxLinesxK = when_NxC[:, self.lines]
        alike = (when_NxLinesxK % 2 == when_NxLinesxK[..., :1] % 2).all(axis=2)
        won_N = np.where(alike, when_NxLinesxK.max(axis=2), NEVER).min(axis=1, initial=NEVER)
        full_N = when_NxC[:, : self.cells].max(axis=1)
        return np.minimum(won_N, full_N)

    def sample(self, words_NxT: NDArray[np.uint32]) -> Tokens:
        moves_NxL = distinct(words_NxT[:, : self.cells], self.cells)
        over_Nx1, at_T = self.last_move(moves_NxL)[:, None] + 1, np.arange(words_NxT.shape[1])
        moves_NxT = np.pad(moves_NxL, ((0, 0), (0, len(at_T) - moves_NxL.shape[1])))
        return np.where(at_T < over_Nx1, moves_NxT, np.where(at_T == over_Nx1, self.cells, NOTHING))

    def p_star(self, inputs_NxL: Tokens) -> NDArray[np.float64]:
        """The exact next-token distribution after every prefix, [N, L, V]."""
        empty_NxLxV = np.eye(self.vocabulary, dtype=bool)[inputs_NxL].cumsum(axis=1) == 0
        empty_NxLxV[..., -1] = False
        p_NxLxV = empty_NxLxV / empty_NxLxV.sum(axis=2, keepdims=True).clip(1)
        p_NxLxV[np.arange(inputs_NxL.shape[1]) >= self.last_move(inputs_NxL)[:, None]] = np.eye(self.vocabulary)[-1]
        return p_NxLxV
