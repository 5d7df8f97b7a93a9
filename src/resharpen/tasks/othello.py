"""Othello: random legal moves; which moves are legal depends on the whole board.

Cells are numbered row by row, without the four cells that are occupied at the start. Black begins with one of four
moves, which are equivalent by symmetry; after d3 white has three moves:

    >>> task = Othello(8)
    >>> p = task.p_star(np.array([[task.token_names.index("d3")]]))[0, 0]
    >>> [task.token_names[t] for t in np.nonzero(p)[0]], float(p.max())
    (['c3', 'e3', 'c5'], 0.3333333333333333)

A player who cannot move passes, without a token; the game is over (EOS) when neither player can move. A board is stored
as two bitboards per game, the disks of the player to move and of the other; the eight directions are rows of one array.

Shapes: N games, T moves, L positions, V tokens, C cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from resharpen import streams
from resharpen.tasks.task import NOTHING, Tokens, TokenTask

Bits = NDArray[np.uint64]
DIRECTIONS = [(0, 1), (1, 0), (1, 1), (1, -1), (0, -1), (-1, 0), (-1, -1), (-1, 1)]


@dataclass(frozen=True)
class Othello(TokenTask):
    board: int = 8

    kind: ClassVar[str] = "othello"
    asked: ClassVar[str] = "the next move of a game of Othello with random legal moves"
    answer: ClassVar[str] = "all legal moves equally likely; EOS where neither player can move"
    published: ClassVar[str] = "Li et al. 2023: a model of the board emerges; Nanda et al. 2023: it is linear"
    shown_metric: ClassVar[str] = "illegal"
    varied: ClassVar[bool] = True
    unit: ClassVar[str] = "moves"
    bin_width: ClassVar[int] = 4
    sequences: ClassVar[int] = 128

    def __post_init__(self) -> None:
        if self.board not in (4, 6, 8):
            raise ValueError(f"board = {self.board}: 4, 6 or 8")

    @property
    def name(self) -> str:
        return f"othello-{self.board}"

    @property
    def title(self) -> str:
        return f"Othello, {self.board} by {self.board}"

    @property
    def longest(self) -> int:
        return self.board**2 - 4

    @property
    def usual_train_length(self) -> int:
        """Half of a game, in whole bins."""
        return self.longest // 2 // self.bin_width * self.bin_width

    @property
    def vocabulary(self) -> int:
        return self.longest + 1

    @property
    def token_names(self) -> tuple[str, ...]:
        return (*(f"{'abcdefgh'[c % self.board]}{c // self.board + 1}" for c in self.cells), "EOS")

    @cached_property
    def cells(self) -> NDArray[np.int64]:
        """The cell of every token that is a move."""
        start = [self.board * row + column for row, column in self._middle]
        return np.array([cell for cell in range(self.board**2) if cell not in start])

    @property
    def _middle(self) -> list[tuple[int, int]]:
        """White's two cells at the start, then black's."""
        low, high = self.board // 2 - 1, self.board // 2
        return [(low, low), (high, high), (low, high), (high, low)]

    @cached_property
    def _steps(self) -> tuple[Bits, Bits, Bits]:
        """For each direction: bits to shift left, bits to shift right, and the cells that can be stepped on, [8, 1]."""
        by_D = np.array([self.board * down + right for down, right in DIRECTIONS])
        rows, columns = np.divmod(np.arange(self.board**2), self.board)
        onto = []
        for down, right in DIRECTIONS:
            inside = (rows - down >= 0) & (rows - down < self.board) & (columns - right >= 0)
            onto.append(_bits(np.nonzero(inside & (columns - right < self.board))[0]))
        left, right = (x.clip(0).astype(np.uint64)[:, None] for x in (by_D, -by_D))
        return left, right, np.array(onto, np.uint64)[:, None]

    def _start(self, n: int) -> tuple[Bits, Bits]:
        cells = [self.board * row + column for row, column in self._middle]
        return np.full(n, _bits(cells[2:])), np.full(n, _bits(cells[:2]))

    def _runs(self, from_N: Bits, through_N: Bits) -> tuple[Bits, Bits]:
        """In each direction the run of cells in `through` that begins next to a cell of `from`, and the cells that
        follow such runs, [8, N] each."""
        left, right, onto = self._steps
        through_8xN = onto & through_N
        run_8xN = (from_N << left >> right) & through_8xN
        for _ in range(self.board - 3):
            run_8xN |= (run_8xN << left >> right) & through_8xN
        return run_8xN, (run_8xN << left >> right) & onto

    def legal(self, mover_N: Bits, other_N: Bits) -> Bits:
        _, after_8xN = self._runs(mover_N, other_N)
        return np.bitwise_or.reduce(after_8xN, axis=0) & ~(mover_N | other_N)

    def play(self, mover_N: Bits, other_N: Bits, move_N: Bits) -> tuple[Bits, Bits]:
        """Disks of the player who moved and of the other, after the move."""
        run_8xN, after_8xN = self._runs(move_N, other_N)
        turned_N = np.bitwise_or.reduce(np.where(after_8xN & mover_N, run_8xN, np.uint64(0)), axis=0)
        return mover_N | move_N | turned_N, other_N & ~turned_N

    def turn(self, mover_N: Bits, other_N: Bits) -> tuple[Bits, Bits, Bits]:
        """Who moves next, after passes, and the legal moves; none where the game is over."""
        legal_N = self.legal(mover_N, other_N)
        if len(stuck := np.nonzero(legal_N == 0)[0]):
            passed = self.legal(other_N[stuck], mover_N[stuck])
            swap, passed = stuck[passed > 0], passed[passed > 0]
            mover_N, other_N = mover_N.copy(), other_N.copy()
            mover_N[swap], other_N[swap], legal_N[swap] = other_N[swap], mover_N[swap], passed
        return mover_N, other_N, legal_N

    def sample(self, words_NxT: NDArray[np.uint32]) -> Tokens:
        tokens_NxT = np.full(words_NxT.shape, NOTHING)
        mover, other = self._start(len(words_NxT))
        alive = np.arange(len(words_NxT))
        for i in range(words_NxT.shape[1]):
            mover, other, legal = self.turn(mover, other)
            rank = streams.below(words_NxT[alive, i], np.bitwise_count(legal))
            token = (self._per_token(legal).cumsum(axis=1, dtype=np.uint8) > rank[:, None]).argmax(axis=1)
            over = legal == 0
            tokens_NxT[alive, i] = np.where(over, self.longest, token)
            go, token = ~over, token[~over]
            alive = alive[go]
            placed, others = self.play(mover[go], other[go], self._bit(token))
            mover, other = others, placed
        return tokens_NxT

    def positions(self, inputs_NxL: Tokens) -> Iterator[tuple[Bits, Bits, Bits]]:
        """After every move: the disks of who moves next and of the other, and the legal moves, [N] each."""
        mover_N, other_N = self._start(len(inputs_NxL))
        for i in range(inputs_NxL.shape[1]):
            placed_N, others_N = self.play(mover_N, other_N, self._bit(inputs_NxL[:, i]))
            mover_N, other_N, legal_N = self.turn(others_N, placed_N)
            yield mover_N, other_N, legal_N

    def p_star(self, inputs_NxL: Tokens) -> NDArray[np.float64]:
        """The exact next-token distribution after every prefix, [N, L, V]."""
        p_NxLxV = np.zeros((*inputs_NxL.shape, self.vocabulary))
        for i, (_, _, legal_N) in enumerate(self.positions(inputs_NxL)):
            p_NxLxV[:, i, :-1] = self._per_token(legal_N)
            p_NxLxV[:, i, -1] = legal_N == 0
        return p_NxLxV / p_NxLxV.sum(axis=2, keepdims=True)

    def _per_token(self, bits_N: Bits) -> NDArray[np.uint8]:
        """1 where the cell of a token is in the set, [N, tokens that are moves]."""
        unpacked = np.unpackbits(bits_N[:, None].astype("<u8").view(np.uint8), axis=1, bitorder="little")
        return unpacked[:, self.cells]

    def _bit(self, token_N: Tokens) -> Bits:
        """The cell of each token; of EOS any."""
        return np.uint64(1) << self.cells[token_N.clip(0, self.longest - 1)].astype(np.uint64)


def _bits(cells: list[int] | NDArray[np.int64]) -> np.uint64:
    return np.uint64(sum(1 << int(cell) for cell in cells))
