"""The seven languages of Tomita (1982) on 0 and 1, as probabilistic automata.

Language 3: an odd run of 1s is never directly followed by an odd run of 0s. So after 1 0 neither the end nor another
1 is legal, because either would leave a run of one 0:

    >>> import numpy as np
    >>> Tomita(3).p_star(np.array([[2, 1, 0]]))[0, -1].tolist()  # tokens 0, 1, BOS, EOS
    [1.0, 0.0, 0.0, 0.0]

    1: 1*    2: (10)*    4: no 000    5: even numbers of 0s and of 1s    6: as many 0s as 1s modulo 3    7: 0*1*0*1*

EOS has one constant probability wherever it is legal, chosen so that half of the sequences end by length 100. Given no
EOS, the first symbol is 0 or 1 with 1/2 each; after that the symbol switches with one constant probability. The share
of an illegal symbol goes to the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar

from resharpen.tasks.automaton import END, Automaton, Edge, half_over
from resharpen.tasks.language import Language

_ = END  # a symbol without a next state is illegal
DFA: dict[int, tuple[tuple[tuple[int, int], ...], frozenset[int]]] = {
    1: (((_, 0),), frozenset({0})),
    2: (((_, 1), (0, _)), frozenset({0})),
    3: (((0, 1), (3, 0), (3, 1), (2, _)), frozenset({0, 1, 2})),
    4: (((1, 0), (2, 0), (_, 0)), frozenset({0, 1, 2})),
    5: (((1, 2), (0, 3), (3, 0), (2, 1)), frozenset({0})),
    6: (((1, 2), (2, 0), (0, 1)), frozenset({0})),
    7: (((0, 1), (2, 1), (2, 3), (_, 3)), frozenset({0, 1, 2, 3})),
}
"""Language -> next state on 0 and on 1 in each state, starting from state 0; and the accepting states."""
SWITCH = {7: 0.01}
"""Probability that the next symbol differs from the last, 1/2 where not given. Larger values in language 7 would make
long prefixes in which 0 is still legal too rare to compare with."""
END_PROBABILITY = {3: 0.00913, 7: 0.00691}
MARKED = {1: 0, 2: 1, 3: 1, 4: 0, 5: 3, 6: 3, 7: 0}
HALF_OVER_BY = 100
BOS, EOS = 2, 3


@dataclass(frozen=True)
class Tomita(Language):
    n: int

    kind: ClassVar[str] = "tomita"
    asked: ClassVar[str] = "a word of one of Tomita's seven regular languages on 0 and 1, symbol by symbol"
    answer: ClassVar[str] = (
        "the legal symbols, the last one again or another at a fixed rate; EOS at a fixed rate if legal"
    )
    published: ClassVar[str] = "Tomita 1982; in the paper language 3 separates placements by AUC"
    usual_fields: ClassVar[Mapping[str, Any]] = {"n": 3}
    metric: ClassVar[str] = "auc"
    shown_metric: ClassVar[str] = "auc"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n not in DFA:
            raise ValueError(f"Tomita({self.n}): the languages are 1..7")

    @property
    def name(self) -> str:
        return f"tomita-{self.n}"

    @property
    def title(self) -> str:
        return f"Tomita {self.n}"

    @property
    def cap(self) -> int:
        return 100

    @property
    def bin_width(self) -> int:
        return 20

    @property
    def longest(self) -> int:
        return 500

    @property
    def marked(self) -> int:
        return MARKED[self.n]

    def build_automaton(self) -> Automaton:
        return automaton(self.n, end_probability(self.n))


@cache
def end_probability(n: int) -> float:
    """The probability of EOS with which half of the sequences end by length 100."""
    return END_PROBABILITY[n] if n in END_PROBABILITY else half_over(partial(automaton, n), HALF_OVER_BY)


def automaton(n: int, end: float) -> Automaton:
    """States are the reachable pairs of a DFA state and the last symbol."""
    transitions, accepting = DFA[n]
    switch = SWITCH.get(n, 0.5)
    states: list[tuple[int, int | None]] = [(0, None)]
    edges = []
    for state, last in states:  # the list grows during the loop
        stop = end if state in accepting else 0.0
        p = [0.5, 0.5] if last is None else [switch if symbol != last else 1 - switch for symbol in (0, 1)]
        legal = [symbol for symbol in (0, 1) if transitions[state][symbol] != END]
        out = [Edge(EOS, stop, END)] if stop else []
        for symbol in legal:
            to = (transitions[state][symbol], symbol)
            if to not in states:
                states.append(to)
            share = p[symbol] if len(legal) == 2 else 1.0
            out.append(Edge(symbol, (1 - stop) * share, states.index(to)))
        edges.append(tuple(out))
    names = tuple("start" if last is None else f"q{state} after {last}" for state, last in states)
    return Automaton(("0", "1", "BOS", "EOS"), names, tuple(edges))
