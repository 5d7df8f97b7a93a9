"""Majority: items, then the most frequent one; ties share the probability.

With v = 3, after BOS 1 2 1 SEP comes 1, and after BOS 1 2 SEP it is 1 or 2:

    >>> import numpy as np
    >>> Majority(3).p_star(np.array([[3, 1, 2, 1, 4]]))[0, -1].tolist()  # tokens 0, 1, 2, BOS, SEP
    [0.0, 1.0, 0.0, 0.0, 0.0]
    >>> Majority(3).p_star(np.array([[3, 1, 2, 4]]))[0, -1].tolist()
    [0.0, 0.5, 0.5, 0.0, 0.0]

Items are independent and uniform on v tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from resharpen import streams
from resharpen.tasks.question import SeparatedTask
from resharpen.tasks.task import Tokens


@dataclass(frozen=True)
class Majority(SeparatedTask):
    v: int = 8

    kind: ClassVar[str] = "majority"
    asked: ClassVar[str] = "the most frequent item of the input"
    answer: ClassVar[str] = "the most frequent token; ties in equal shares"
    published: ClassVar[str] = (
        "Zhou et al. 2024, Huang et al. 2025: generalizes to longer inputs; solved by uniform attention"
    )
    per_item: ClassVar[int] = 1
    besides: ClassVar[int] = 3

    @property
    def distinct(self) -> bool:
        return False

    @property
    def name(self) -> str:
        return f"majority-v{self.v}"

    @property
    def title(self) -> str:
        return f"Majority, v = {self.v}"

    def reply(self, words_NxT: NDArray[np.uint32], items_NxI: Tokens, real_NxI: NDArray[np.bool_]) -> Tokens:
        """The last random word selects one of the most frequent items."""
        count_NxV = (np.eye(self.v, dtype=np.int64)[items_NxI] * real_NxI[..., None]).sum(1)
        most_NxV = count_NxV == count_NxV.max(1, keepdims=True)
        rank_N = streams.below(words_NxT[:, -1], most_NxV.sum(1))
        return (most_NxV.cumsum(1) > rank_N[:, None]).argmax(1)[:, None]

    def answer_p(self, inputs_NxL: Tokens, n_N: Tokens) -> NDArray[np.float64]:
        so_far_NxLxV = np.eye(self.vocabulary, dtype=np.int64)[inputs_NxL][..., : self.v].cumsum(1)
        most_NxLxV = so_far_NxLxV == so_far_NxLxV.max(2, keepdims=True)
        return np.pad(most_NxLxV / most_NxLxV.sum(2, keepdims=True), ((0, 0), (0, 0), (0, 2)))
