"""Flip-flop: one bit of memory, written, ignored and read back.

Tokens are the instructions w (write), r (read), i (ignore), each followed by a bit, 0 or 1. After w and i the bit is
random; after r it is the one that was last written. In w 1 i 0 r it is 1:

    >>> import numpy as np
    >>> FlipFlop().p_star(np.array([[0, 4, 2, 3, 1]]))[0, -1].tolist()  # tokens w, r, i, 0, 1
    [0.0, 0.0, 0.0, 0.0, 1.0]

The first instruction is w; later ones are i with p_ignore, and w and r with half of the rest each. Sequences never end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from resharpen.tasks.automaton import Automaton, Edge
from resharpen.tasks.language import Language

TOKENS = ("w", "r", "i", "0", "1")
WRITE, READ, IGNORE, ZERO, ONE = range(5)


@dataclass(frozen=True)
class FlipFlop(Language):
    p_ignore: float = 0.8

    kind: ClassVar[str] = "flip-flop"
    asked: ClassVar[str] = "the bit that was last written, skipping ignored bits"
    answer: ClassVar[str] = (
        "after r the bit last written; after w and i each bit 1/2; else i with p_ignore, w and r equally likely"
    )
    published: ClassVar[str] = "Liu et al. 2023: transformers fail at rare reads (p_ignore 0.98, 0.1), an LSTM does not"
    usual_tests: ClassVar[Mapping[str, Mapping[str, Any]]] = {"sparse": {"p_ignore": 0.98}, "dense": {"p_ignore": 0.1}}
    measures: ClassVar[tuple[str, ...]] = ("tvd",)
    shown_metric: ClassVar[str] = "error"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.p_ignore < 1:
            raise ValueError(f"p_ignore = {self.p_ignore}: a probability between 0 and 1")

    @property
    def name(self) -> str:
        return f"flip-flop-i{self.p_ignore:g}"

    @property
    def title(self) -> str:
        return f"Flip-flop, p_ignore = {self.p_ignore:g}"

    @property
    def cap(self) -> int:
        return 64

    @property
    def longest(self) -> int:
        return 3 * self.cap

    def build_automaton(self) -> Automaton:
        """States: after w; then for each bit in memory, after a bit, after r and after i."""
        rest = (1 - self.p_ignore) / 2
        names, edges = ["w"], [(Edge(ZERO, 0.5, 1), Edge(ONE, 0.5, 4))]
        for bit, here in ((0, 1), (1, 4)):
            names += [f"memory {bit}", f"memory {bit}, r", f"memory {bit}, i"]
            edges += [
                (Edge(WRITE, rest, 0), Edge(READ, rest, here + 1), Edge(IGNORE, self.p_ignore, here + 2)),
                (Edge(ZERO + bit, 1.0, here),),
                (Edge(ZERO, 0.5, here), Edge(ONE, 0.5, here)),
            ]
        return Automaton(TOKENS, tuple(names), tuple(edges), opening=WRITE)
