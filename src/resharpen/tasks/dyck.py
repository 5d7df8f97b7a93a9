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

from dataclasses import dataclass
from typing import ClassVar

from resharpen.tasks.automaton import END, TOP, Automaton, Edge
from resharpen.tasks.language import Language

LARGEST = 10_000
"""The most edges of an automaton, roughly; building more takes minutes."""


@dataclass(frozen=True)
class Dyck(Language):
    k: int
    m: int

    kind: ClassVar[str] = "dyck"

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
