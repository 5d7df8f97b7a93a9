"""Copy: items, then the same items again, forwards or in reverse.

With v = 4, after BOS 2 0 3 SEP 2 the next token is 0; in reverse, after BOS 2 0 3 SEP 3 it is 0 as well:

    >>> import numpy as np
    >>> int(Copy(4).p_star(np.array([[4, 2, 0, 3, 5, 2]]))[0, -1].argmax())  # tokens 0, 1, 2, 3, BOS, SEP
    0
    >>> int(Copy(4, reverse=True).p_star(np.array([[4, 2, 0, 3, 5, 3]]))[0, -1].argmax())
    0

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
class Copy(SeparatedTask):
    v: int = 62
    repeated: bool = False
    reverse: bool = False

    kind: ClassVar[str] = "copy"
    asked: ClassVar[str] = "the items of the input again, in the same or in reverse order"
    answer: ClassVar[str] = "one token at every place of the answer"
    published: ClassVar[str] = (
        "Zhou et al. 2024, Huang et al. 2025: distinct items generalize to longer inputs, repeated ones do not"
    )
    shown_metric: ClassVar[str] = "exact"
    per_item: ClassVar[int] = 2

    @property
    def distinct(self) -> bool:
        return not self.repeated

    @property
    def name(self) -> str:
        return f"copy{'-repeated' * self.repeated}{'-reverse' * self.reverse}-v{self.v}"

    @property
    def title(self) -> str:
        return f"Copy {'repeated' if self.repeated else 'distinct'} items{', reversed' * self.reverse}, v = {self.v}"

    def reply(self, words_NxT: NDArray[np.uint32], items_NxI: Tokens, real_NxI: NDArray[np.bool_]) -> Tokens:
        if not self.reverse:
            return items_NxI
        from_NxI = real_NxI.sum(1, keepdims=True) - 1 - np.arange(items_NxI.shape[1])
        return np.take_along_axis(items_NxI, from_NxI.clip(0), axis=1)

    def answer_p(self, inputs_NxL: Tokens, n_N: Tokens) -> NDArray[np.float64]:
        """Item i is at i + 1, after BOS; the answer begins at n + 1, with SEP."""
        n_Nx1, at_L = n_N[:, None], np.arange(inputs_NxL.shape[1])
        from_NxL = 2 * n_Nx1 + 1 - at_L if self.reverse else at_L - n_Nx1
        return np.eye(self.vocabulary)[np.take_along_axis(inputs_NxL, from_NxL.clip(0, len(at_L) - 1), axis=1)]
