"""Games: numbers that others counted, and rules written down a second time."""

from collections import Counter
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest

from resharpen.tasks import Game, Othello


def over(cells, m, n, k):
    """Whether k of one player are in a row, after these moves."""
    for player in (0, 1):
        mine = {divmod(cell, n) for cell in cells[player::2]}
        for row, column in mine:
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                if all((row + i * down, column + i * right) in mine for i in range(k)):
                    return True
    return False


@pytest.mark.parametrize(("m", "n", "k"), [(2, 3, 2), (2, 3, 3), (1, 5, 3), (3, 2, 2), (2, 2, 1)])
def test_p_star_of_games_by_brute_force(m, n, k):
    """In every order of all cells, at every prefix."""
    task, cells = Game(m, n, k), m * n
    moves = np.array(list(permutations(range(cells))))
    p = task.p_star(moves)
    for row, every in zip(p, moves.tolist(), strict=True):
        ended = False
        for i in range(cells):
            ended = ended or over(every[: i + 1], m, n, k) or i == cells - 1
            expected = np.zeros(cells + 1)
            expected[[cells] if ended else every[i + 1 :]] = 1
            assert np.allclose(row[i], expected / expected.sum())


def test_tic_tac_toe_of_two_random_players():
    """Games of 5 .. 9 moves have 2/21 37/420 37/140 1/5 37/105; the first player wins 737/1260, the second 121/420."""
    lines = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]
    lengths, winners = Counter(), Counter()
    for first, alike in ((0, 4), (1, 4), (4, 1)):  # corners, edges and the middle
        rest = [cell for cell in range(9) if cell != first]
        moves = np.array([(first, *others) for others in permutations(rest)])
        when = moves.argsort(axis=1)
        won = np.full((2, len(moves)), 9)  # the move with which each player has a row; 9: never
        for line in lines:
            for player in (0, 1):
                theirs = (when[:, line] % 2 == player).all(axis=1)
                won[player] = np.where(theirs, np.minimum(won[player], when[:, line].max(axis=1)), won[player])
        assert np.array_equal(Game(3, 3, 3).last_move(moves), np.minimum(won.min(axis=0), 8))
        for last, count in Counter(won.min(axis=0).tolist()).items():
            lengths[min(last, 8) + 1] += alike * count
            winners[last % 2 if last < 9 else None] += alike * count
    total = lengths.total()
    expected = dict(zip(range(5, 10), map(Fraction, ("2/21", "37/420", "37/140", "1/5", "37/105")), strict=True))
    assert {n: Fraction(count, total) for n, count in lengths.items()} == expected
    assert Fraction(winners[0], total) == Fraction(737, 1260)
    assert Fraction(winners[1], total) == Fraction(121, 420)


@pytest.mark.parametrize(("m", "n", "k", "lines"), [(3, 3, 3, 8), (4, 4, 4, 10), (5, 5, 5, 12), (6, 7, 4, 69)])
def test_rows_of_a_board(m, n, k, lines):
    """69 are the rows of four in Connect Four."""
    assert len(Game(m, n, k).lines) == lines


# ---- Othello ---------------------------------------------------------------------------------------------------------


class Board:
    """Othello on a dict of disks, by the rules as one would explain them."""

    def __init__(self, size):
        low, high = size // 2 - 1, size // 2
        self.size, self.mover = size, "x"
        self.disks = {(low, low): "o", (high, high): "o", (low, high): "x", (high, low): "x"}

    def turned(self, row, column, mover):
        found = []
        for down in (-1, 0, 1):
            for right in (-1, 0, 1):
                line, at = [], (row + down, column + right)
                while (down or right) and self.disks.get(at) not in (None, mover):
                    line.append(at)
                    at = (at[0] + down, at[1] + right)
                if self.disks.get(at) == mover:
                    found += line
        return found

    def moves(self, mover):
        cells = [(row, column) for row in range(self.size) for column in range(self.size)]
        return [cell for cell in cells if cell not in self.disks and self.turned(*cell, mover)]

    def legal(self):
        """The legal moves, after a pass if need be."""
        if not self.moves(self.mover):
            self.mover = "ox"[self.mover == "o"]
        return self.moves(self.mover)

    def play(self, cell):
        for other in self.turned(*cell, self.mover):
            self.disks[other] = self.mover
        self.disks[cell] = self.mover
        self.mover = "ox"[self.mover == "o"]


@pytest.mark.parametrize(("size", "games"), [(4, 60), (6, 20), (8, 12)])
def test_legal_moves_of_whole_games(size, games):
    """Passes, and ends before the board is full, included."""
    task = Othello(size)
    inputs, _, mask = task.sample_batch(games, task.longest)
    p = task.p_star(inputs)
    names = [divmod(int(cell), size) for cell in task.cells]
    passes = ended_early = 0
    for row in range(games):
        board = Board(size)
        for i in range(int(mask[row].sum())):
            board.legal()
            board.play(names[inputs[row, i]])
            mover, legal = board.mover, board.legal()
            passes += board.mover != mover and bool(legal)
            expected = np.zeros(task.vocabulary)
            expected[[names.index(cell) for cell in legal] or [-1]] = 1 / max(1, len(legal))
            assert np.allclose(p[row, i], expected)
        assert p[row, i, -1] == 1
        ended_early += len(board.disks) < size**2
    assert passes > 0
    assert ended_early > 0 or size == 8


@pytest.mark.parametrize(
    ("size", "counts"), [(8, [4, 12, 56, 244, 1396, 8200]), (6, [4, 12, 56, 244, 1364]), (4, [4, 12, 44, 128])]
)
def test_numbers_of_move_sequences(size, counts):
    task = Othello(size)
    mover, other, legal = task.turn(*task._start(1))
    for count in counts:
        assert int(np.bitwise_count(legal).sum()) == count
        row, token = np.nonzero(task._per_token(legal))
        placed, others = task.play(mover[row], other[row], task._bit(token))
        mover, other, legal = task.turn(others, placed)


def test_the_start_and_names_of_cells():
    task = Othello(8)
    mover, _, legal = task.turn(*task._start(1))
    assert [task.token_names[t] for t in np.nonzero(task._per_token(legal)[0])[0]] == ["d3", "c4", "f5", "e6"]
    assert int(mover[0]) == 1 << 28 | 1 << 35
    assert task.token_names[:3] == ("a1", "b1", "c1")
    assert task.token_names[-2:] == ("h8", "EOS")
