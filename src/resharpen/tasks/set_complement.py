"""The Set Complement Task SCT(v): after distinct tokens, every absent token is equally likely.

With v = 4, after the tokens 2, 0 the next one is 1 or 3:

    >>> SetComplement(4).p_star(np.array([[2, 0]]))[0, -1].tolist()
    [0.0, 0.5, 0.0, 0.5]

Shapes: N sequences, L positions, V tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from resharpen import streams
from resharpen.tasks.metrics import TVD
from resharpen.tasks.task import Metric, Tokens, TokenTask
from resharpen.tasks.validation import ValidationSet

ENUMERATED_UP_TO = 9
"""The largest v for which every state is a validation prefix: 2,295 of them at v = 9."""


def states(v: int, s: int) -> Iterator[tuple[int, ...]]:
    """Every state of length s, as its tokens in ascending order with the last token moved to the end."""
    for last in range(v):
        for rest in combinations([t for t in range(v) if t != last], s - 1):
            yield (*rest, last)


@dataclass(frozen=True)
class SetComplement(TokenTask):
    v: int

    kind: ClassVar[str] = "set-complement"
    asked: ClassVar[str] = "one of v tokens that has not occurred yet"
    answer: ClassVar[str] = "every absent token equally likely"
    published: ClassVar[str] = "the paper; without a norm after attention the gap falls like 1/length"
    usual_fields: ClassVar[Mapping[str, Any]] = {"v": 9}
    sets: ClassVar[bool] = True
    sequences: ClassVar[int] = 1024
    usual_model: ClassVar[str] = "minimal"
    usual_batch: ClassVar[int] = 256
    shown_by: ClassVar[Literal["length", "train_length"]] = "train_length"

    def __post_init__(self) -> None:
        if self.v < 2:
            raise ValueError(f"v = {self.v}: the set needs at least 2 tokens")

    @property
    def name(self) -> str:
        return f"sct-v{self.v}"

    @property
    def title(self) -> str:
        return f"Set Complement, v = {self.v}"

    @property
    def vocabulary(self) -> int:
        return self.v

    @property
    def metrics(self) -> dict[str, Metric]:
        """The TVD of a uniform guess is i / v at length i: one half on average."""
        return {**super().metrics, "tvd": replace(TVD, guess=0.5)}

    @property
    def longest(self) -> int:
        """The longest input that leaves a token to predict."""
        return self.v - 1

    @property
    def reported_lengths(self) -> Sequence[int]:
        return range(1, self.v)

    def sample(self, words_NxL: NDArray[np.uint32]) -> Tokens:
        """Distinct tokens, uniform without replacement: word i picks the rank of a token among the v - i absent ones.

        The rank becomes a token by stepping over the earlier tokens in ascending order.
        """
        tokens_NxL = np.empty(words_NxL.shape, dtype=np.int64)
        for i in range(words_NxL.shape[1]):
            token_N = streams.below(words_NxL[:, i], self.v - i)
            for earlier_N in np.sort(tokens_NxL[:, :i], axis=1).T:
                token_N += earlier_N <= token_N
            tokens_NxL[:, i] = token_N
        return tokens_NxL

    def p_star(self, inputs_NxL: Tokens) -> NDArray[np.float64]:
        """The exact next-token distribution after every prefix, [N, L, V]."""
        present_NxLxV = np.eye(self.v, dtype=bool)[inputs_NxL].cumsum(axis=1) > 0
        return ~present_NxLxV / np.maximum(1, self.v - present_NxLxV.sum(axis=-1, keepdims=True))

    def validation(self, seed: int, use: str) -> ValidationSet:
        """The `selection` or `report` set. For small v each state (last token, set) once, with the earlier tokens in
        random order, since a model may depend on it; otherwise all prefixes of fixed random sequences."""
        if self.v > ENUMERATED_UP_TO:
            return super().validation(seed, use)
        every = [state for length in range(1, self.v) for state in states(self.v, length)]
        inputs = np.zeros((len(every), self.longest), dtype=np.int64)
        scored = np.zeros(inputs.shape, dtype=bool)
        key = streams.key(seed, self.name, "validation", use)
        words = streams.words(key, self.v, range(len(every)))
        for row, (*earlier, last) in enumerate(every):
            order = np.argsort(words[row, : len(earlier)])
            inputs[row, : len(earlier) + 1] = [*(earlier[i] for i in order), last]
            scored[row, len(earlier)] = True
        return ValidationSet(inputs, scored, sampled=False)
