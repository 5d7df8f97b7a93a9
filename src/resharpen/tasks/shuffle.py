"""Shuffle: brackets of k types; each type is balanced, independently of the others.

With two types the tokens are ( [ ) ] BOS EOS. After ( [ any bracket may open, and either may close:

    >>> import numpy as np
    >>> Shuffle(2).p_star(np.array([[4, 0, 1]]))[0, -1].tolist()
    [0.25, 0.25, 0.25, 0.25, 0.0, 0.0]

Opening brackets have 1/(2k) each. The other half is shared by the types that are open, or goes to EOS where none is.
Right after BOS each opening bracket has 1/k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from resharpen import streams
from resharpen.tasks.counter import Counting
from resharpen.tasks.task import NOTHING, Tokens


@dataclass(frozen=True)
class Shuffle(Counting):
    k: int = 2

    kind: ClassVar[str] = "shuffle"
    asked: ClassVar[str] = "brackets of k types, each balanced independently: k counters"
    answer: ClassVar[str] = "1/2 open, shared by the types; 1/2 close, shared by the types that are open, or EOS"
    sequences: ClassVar[int] = 1024

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k = {self.k}: at least 1 type of brackets")

    @property
    def name(self) -> str:
        return f"shuffle-{self.k}"

    @property
    def title(self) -> str:
        return f"Shuffle of {self.k} types of brackets"

    @property
    def vocabulary(self) -> int:
        return 2 * self.k + 2

    @property
    def opening(self) -> int:
        return 2 * self.k

    @property
    def token_names(self) -> tuple[str, ...]:
        return (*(f"open {i}" for i in range(self.k)), *(f"close {i}" for i in range(self.k)), "BOS", "EOS")

    def sample(self, words_NxT: NDArray[np.uint32]) -> Tokens:
        """The highest bit of a word decides between opening and closing, the others choose the type."""
        tokens_NxT, open_NxK = np.full(words_NxT.shape, NOTHING), np.zeros((len(words_NxT), self.k), np.int64)
        alive = np.arange(len(words_NxT))
        for i in range(words_NxT.shape[1]):
            word = words_NxT[alive, i]
            opens = (word >> np.uint32(31) == 0) | (i == 0)
            choice = word if i == 0 else word << np.uint32(1)
            closable_AxK = (open_NxK[alive] > 0).cumsum(axis=1)
            count = closable_AxK[:, -1]
            closed = (closable_AxK > streams.below(choice, count)[:, None]).argmax(axis=1)
            kind = np.where(opens, streams.below(choice, self.k), closed)
            over = ~opens & (count == 0)
            tokens_NxT[alive, i] = np.where(over, 2 * self.k + 1, kind + self.k * ~opens)
            open_NxK[alive, kind] += np.where(opens, 1, -1)
            alive = alive[~over]
        return tokens_NxT

    def p_star(self, inputs_NxL: Tokens) -> NDArray[np.float64]:
        """The exact next-token distribution after every prefix, [N, L, V]."""
        one_NxLxV = np.eye(self.vocabulary, dtype=np.int64)[inputs_NxL]
        closable_NxLxK = (one_NxLxV[..., : self.k] - one_NxLxV[..., self.k : 2 * self.k]).cumsum(axis=1) > 0
        count_NxLx1 = closable_NxLxK.sum(axis=2, keepdims=True)
        p_NxLxV = np.zeros(one_NxLxV.shape)
        p_NxLxV[..., : self.k] = 0.5 / self.k
        p_NxLxV[..., self.k : 2 * self.k] = 0.5 * closable_NxLxK / count_NxLx1.clip(1)
        p_NxLxV[..., -1:] = 0.5 * (count_NxLx1 == 0)
        p_NxLxV[:, 0] = np.arange(self.vocabulary) < self.k
        p_NxLxV[:, 0] /= self.k
        return p_NxLxV
