"""Recall (MQAR): pairs of key and value, then every key again, each followed by its value.

With four keys k0 .. k3 and two values: k2 v1, k0 v0, then the queries k0 v0, k2 and its value:

    >>> import numpy as np
    >>> task = Recall(keys=4, values=2)
    >>> p = task.p_star(np.array([[2, 5, 0, 4, 0, 4, 2]]))[0]  # tokens k0, k1, k2, k3, v0, v1
    >>> p[-1].tolist(), p[-2].tolist()  # v1; and before it the only key that had not been queried
    ([0.0, 0.0, 0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0, 0.0, 0.0])

Keys are distinct, values independent and uniform; a queried key is uniform on those not yet queried. The values of
queries are scored. There is neither BOS nor a separator: the first repeated key is the first query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from resharpen import streams
from resharpen.tasks.question import QuestionTask, distinct, hazard
from resharpen.tasks.task import NOTHING, Tokens


@dataclass(frozen=True)
class Recall(QuestionTask):
    keys: int = 48
    values: int = 16

    kind: ClassVar[str] = "recall"
    asked: ClassVar[str] = "the value that followed a key earlier (multi-query associative recall)"
    answer: ClassVar[str] = "after a queried key its value; queried keys: those not yet queried, equally likely"
    published: ClassVar[str] = "Arora et al. 2024: attention solves it, fixed-size states do not"
    shown_metric: ClassVar[str] = "error"
    per_item: ClassVar[int] = 4
    besides: ClassVar[int] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("keys", 1), ("values", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} = {getattr(self, name)}: at least {least}")

    @property
    def name(self) -> str:
        return f"recall-k{self.keys}-v{self.values}"

    @property
    def title(self) -> str:
        return f"Recall, {self.keys} keys, {self.values} values"

    @property
    def vocabulary(self) -> int:
        return self.keys + self.values

    @property
    def token_names(self) -> tuple[str, ...]:
        return (*(f"k{i}" for i in range(self.keys)), *(f"v{i}" for i in range(self.values)))

    @property
    def most_items(self) -> float:
        return self.keys

    def ask(self, words_NxT: NDArray[np.uint32], n_N: Tokens) -> Tokens:
        """One word per key and per value, and one per key that sorts the queries."""
        most, n_Nx1 = self.most_of(words_NxT), n_N[:, None]
        keys_NxI = distinct(words_NxT[:, 1 : 1 + most], self.keys)
        values_NxI = self.keys + streams.below(words_NxT[:, 1 + most : 1 + 2 * most], self.values)
        last_NxI = np.arange(most) >= n_Nx1  # keys that do not occur are queried last
        order_NxI = np.lexsort((words_NxT[:, 1 + 2 * most : 1 + 3 * most], last_NxI), axis=1)
        pairs_NxIx2 = np.stack([keys_NxI, values_NxI], axis=2)
        queries_NxIx2 = np.take_along_axis(pairs_NxIx2, order_NxI[..., None], axis=1)
        pairs_NxP, queries_NxP = (x.reshape(len(words_NxT), -1) for x in (pairs_NxIx2, queries_NxIx2))
        at_NxT = np.arange(words_NxT.shape[1]) - 2 * n_Nx1
        asked_NxT = np.take_along_axis(queries_NxP, at_NxT.clip(0, 2 * most - 1), axis=1)
        told_NxT = np.pad(pairs_NxP, ((0, 0), (0, words_NxT.shape[1] - 2 * most)))
        return np.where(at_NxT < 0, told_NxT, np.where(at_NxT < 2 * n_Nx1, asked_NxT, NOTHING))

    def items(self, inputs_NxL: Tokens) -> Tokens:
        """The number of keys before the first repeated one; they are at even places."""
        keys_NxI = inputs_NxL[:, ::2]
        order_NxI = np.argsort(keys_NxI, axis=1, kind="stable")
        again_NxI = np.diff(np.take_along_axis(keys_NxI, order_NxI, axis=1), axis=1) == 0
        return np.where(again_NxI, order_NxI[:, 1:], keys_NxI.shape[1]).min(axis=1, initial=keys_NxI.shape[1])

    def answers(self, inputs_NxL: Tokens) -> NDArray[np.bool_]:
        """At queried keys."""
        at_L = np.arange(inputs_NxL.shape[1])
        return (at_L % 2 == 0) & (at_L >= 2 * self.items(inputs_NxL)[:, None])

    def p_star(self, inputs_NxL: Tokens) -> NDArray[np.float64]:
        """The exact next-token distribution after every prefix, [N, L, V]. After a value in the question comes a new
        key, or the first query with the hazard of an n that is uniform on 1 .. train_items."""
        (N, L), one = inputs_NxL.shape, np.eye(self.vocabulary, dtype=np.int64)
        times_NxLxK, asking_NxL = one[inputs_NxL][..., : self.keys].cumsum(axis=1), self.answers(inputs_NxL)
        stop_NxLx1 = hazard((times_NxLxK > 0).sum(2, keepdims=True), self.train_items)
        new_NxLxK, unasked_NxLxK = (shares(times_NxLxK == times) for times in (0, 1))
        told_NxLxK = (1 - stop_NxLx1) * new_NxLxK + stop_NxLx1 * unasked_NxLxK
        asked_NxLx1 = (np.cumsum(asking_NxL, axis=1) > 0)[..., None]
        key_NxLxV = np.pad(np.where(asked_NxLx1, unasked_NxLxK, told_NxLxK), ((0, 0), (0, 0), (0, self.values)))
        value_NxLxV = np.zeros((N, L, self.vocabulary))
        value_NxLxV[..., self.keys :] = 1 / self.values
        row, at = np.nonzero(asking_NxL)
        stood = (inputs_NxL[row, ::2] == inputs_NxL[row, at, None]).argmax(1)  # the pair of this key
        row, at, stood = (x[2 * stood < at] for x in (row, at, stood))  # the padding may be a key that did not occur
        value_NxLxV[row, at] = one[inputs_NxL[row, 2 * stood + 1]]
        return np.where(np.arange(L)[:, None] % 2 == 0, value_NxLxV, key_NxLxV)


def shares(which_NxLxK: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Equal probabilities, [N, L, K]; uniform on all keys if there is none, after the last answer."""
    some_NxLxK = which_NxLxK | ~which_NxLxK.any(-1, keepdims=True)
    return some_NxLxK / some_NxLxK.sum(-1, keepdims=True)
