"""Bounded Dyck, Dyck(k, m): well-nested brackets of k types, at most m deep.

With two types the tokens are ( [ ) ] BOS EOS. After `( [` at depth 2 of at most 3 either bracket may open, and only
the square one may close:

    >>> import numpy as np
    >>> Dyck(2, 3).p_star(np.array([[4, 0, 1]]))[0, -1].tolist()
    [0.25, 0.25, 0.0, 0.5, 0.0, 0.0]

Probabilities: at depth 0 each opening bracket 1/(2k) and EOS 1/2; between, each opening 1/(2k) and the matching close
1/2; at depth m the matching close. Right after BOS each opening bracket has 1/k, so that no sequence is empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from resharpen.metrics import ByLength
from resharpen.tasks.automaton import END, TOP, Automaton, Edge
from resharpen.tasks.language import Language
from resharpen.tasks.metrics import Metric, PlaceMetric, closing
from resharpen.tasks.task import Measured, Tokens
from resharpen.tasks.validation import SurvivingSet

LARGEST = 10_000
"""Approximate limit on the edges of an automaton; building a larger one takes minutes."""


@dataclass(frozen=True)
class Dyck(Language):
    k: int
    m: int

    kind: ClassVar[str] = "dyck"
    asked: ClassVar[str] = "well-nested brackets of k types, at most m deep"
    answer: ClassVar[str] = "1/2 open, shared by the types; 1/2 close the bracket on top, or EOS where none is open"
    published: ClassVar[str] = "Hewitt et al. 2020; Yao et al. 2021"
    usual_fields: ClassVar[Mapping[str, Any]] = {"k": 8, "m": 10}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k < 1 or self.m < 1:
            raise ValueError(f"Dyck({self.k}, {self.m}): k types of brackets and depth m are at least 1")
        if self.k * self.m > LARGEST:
            raise ValueError(f"Dyck({self.k}, {self.m}): k times m is at most {LARGEST:,}")

    @property
    def name(self) -> str:
        return f"dyck-k{self.k}-m{self.m}"

    @property
    def title(self) -> str:
        return f"Dyck({self.k}, {self.m})"

    @property
    def cap(self) -> int:
        return 8 * self.m * (self.m - 2) + 60

    @property
    def marked(self) -> int:
        """EOS, legal at depth 0."""
        return 2 * self.k + 1

    @property
    def further(self) -> Mapping[str, PlaceMetric]:
        """Adds the accuracy of closing brackets of Hewitt et al. (2020)."""
        return {**super().further, "closing": self._closing}

    @cached_property
    def _closing(self) -> PlaceMetric:
        return closing(self.k, 2 * self.k)

    def further_metrics(self) -> dict[str, Metric]:
        by_distance = replace(self._closing.about, label=f"{self._closing.about.label}, by distance to the opening one")
        return {**super().further_metrics(), "closing_distance": by_distance}

    def by_length(self, measured: Measured, validation: SurvivingSet) -> dict[str, ByLength]:
        """`closing_distance` is by distance from the opening to the closing bracket instead of length."""
        found = super().by_length(measured, validation)
        if "closing" in measured:
            shape = validation.inputs_NxL.shape
            distance_NxL = opening_distance(validation.inputs_NxL.astype(np.int64), self.k)
            weight_NxL = validation.weight_NxL * validation.alive_L
            columns, counts = [], []
            for end in self.reported_lengths:
                here_NxL = (distance_NxL > end - self.bin_width) & (distance_NxL <= end)
                weight_P = weight_NxL[here_NxL]
                values_MxP = measured["closing"].reshape(-1, *shape)[:, here_NxL]
                total = weight_P.sum()
                columns.append(values_MxP @ weight_P / total if total else np.full(len(values_MxP), np.nan))
                counts.append(len(weight_P))
            found["closing_distance"] = np.array(self.reported_lengths), np.stack(columns, axis=1), np.array(counts)
        return found

    def build_automaton(self) -> Automaton:
        """States: the start, then the depths 0 .. m. An opening bracket pushes its closing one."""
        k, m = self.k, self.m
        names = [*(f"open {i}" for i in range(k)), *(f"close {i}" for i in range(k)), "BOS", "EOS"]

        def opening(p: float, depth: int) -> list[Edge]:
            return [Edge(i, p / k, 1 + depth + 1, push=k + i) for i in range(k)]

        def at_depth(depth: int) -> list[Edge]:
            down = Edge(TOP, 1.0 if depth == m else 0.5, depth) if depth else Edge(2 * k + 1, 0.5, END)
            return [down] if depth == m else [*opening(0.5, depth), down]

        edges = [opening(1.0, 0), *(at_depth(depth) for depth in range(m + 1))]
        states = ("start", *(f"depth {depth}" for depth in range(m + 1)))
        return Automaton(tuple(names), states, tuple(map(tuple, edges)))


def opening_distance(inputs_NxL: Tokens, k: int) -> Tokens:
    """After every prefix, the distance from the next token to the opening bracket that it could close; 0 if none is
    open, [N, L]. Tokens 0 .. k-1 open, k .. 2k-1 close.

    >>> opening_distance(np.array([[4, 0, 1, 3, 2]]), 2).tolist()  # BOS ( [ ] )
    [[0, 1, 1, 3, 0]]
    """
    opens_NxL = inputs_NxL < k
    depth_NxL = np.cumsum(opens_NxL.astype(np.int64) - ((inputs_NxL >= k) & (inputs_NxL < 2 * k)), axis=1)
    at_L, found = np.arange(inputs_NxL.shape[1]), np.zeros(inputs_NxL.shape, np.int64)
    for depth in range(1, depth_NxL.max(initial=0) + 1):
        here_NxL = depth_NxL == depth
        last_NxL = np.maximum.accumulate(np.where(opens_NxL & here_NxL, at_L, -1), axis=1)
        found = np.where(here_NxL, at_L + 1 - last_NxL, found)
    return found
