"""Sort: items, then the same items in ascending order.

With v = 4, after BOS 2 0 3 SEP 0 the next token is 2:

    >>> import numpy as np
    >>> Sort(4).p_star(np.array([[4, 2, 0, 3, 5, 0]]))[0, -1].tolist()  # tokens 0, 1, 2, 3, BOS, SEP
    [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]

Items are distinct, uniform without replacement, or `repeated`, independent and uniform.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from resharpen.tasks.question import SeparatedTask
from resharpen.tasks.task import Tokens


@dataclass(frozen=True)
class Sort(SeparatedTask):
    v: int = 62
    repeated: bool = False

    kind: ClassVar[str] = "sort"
    asked: ClassVar[str] = "the items of the input in ascending order"
    answer: ClassVar[str] = "one token at every place of the answer"
    published: ClassVar[str] = "Zhou et al. 2024, Huang et al. 2025: generalizes to longer inputs"
    shown_metric: ClassVar[str] = "exact"
    per_item: ClassVar[int] = 2

    @property
    def distinct(self) -> bool:
        return not self.repeated

    @property
    def name(self) -> str:
        return f"sort{'-repeated' * self.repeated}-v{self.v}"

    @property
    def title(self) -> str:
        return f"Sort{', repeated items' if self.repeated else ''}, v = {self.v}"

    def reply(self, words_NxT: NDArray[np.uint32], items_NxI: Tokens, real_NxI: NDArray[np.bool_]) -> Tokens:
        return np.sort(np.where(real_NxI, items_NxI, self.v), axis=1)

    def answer_p(self, inputs_NxL: Tokens, n_N: Tokens) -> NDArray[np.float64]:
        at_L, n_Nx1 = np.arange(inputs_NxL.shape[1]), n_N[:, None]
        items_NxL = np.where((at_L > 0) & (at_L <= n_Nx1), inputs_NxL, self.v)  # other tokens are sorted last
        at_NxL = (at_L - n_Nx1 - 1).clip(0)
        return np.eye(self.vocabulary)[np.take_along_axis(np.sort(items_NxL, axis=1), at_NxL, axis=1)]
