"""Regular languages from the literature, by name.

    aa       (aa)*              aaaa    (aaaa)*            abab          (abab)*
    abcde    aa*bb*cc*dd*ee*    abdbc   {a,b}*d{b,c}*      012           {0,1,2}*02*
    even-pairs    as many ab as ba, so that the last symbol is the first one

Legal symbols are equally likely; EOS has one constant probability wherever it is legal, chosen so that half of the
sequences end by 50 symbols. In abdbc, before the d, only a, b and d may follow:

    >>> import numpy as np
    >>> task = Regular("abdbc")
    >>> task.token_names
    ('a', 'b', 'd', 'c', 'BOS', 'EOS')
    >>> task.p_star(np.array([[4, 0]]))[0, -1].round(3).tolist()
    [0.333, 0.333, 0.333, 0.0, 0.0, 0.0]
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import ClassVar

from resharpen.errors import unknown
from resharpen.tasks.automaton import END, Automaton, Edge, half_over
from resharpen.tasks.language import Language

DFA: dict[str, tuple[list[dict[str, int]], set[int]]] = {
    "aa": ([{"a": 1}, {"a": 0}], {0}),
    "aaaa": ([{"a": 1}, {"a": 2}, {"a": 3}, {"a": 0}], {0}),
    "abab": ([{"a": 1}, {"b": 2}, {"a": 3}, {"b": 0}], {0}),
    "abcde": ([{"a": 1}, {"a": 1, "b": 2}, {"b": 2, "c": 3}, {"c": 3, "d": 4}, {"d": 4, "e": 5}, {"e": 5}], {5}),
    "abdbc": ([{"a": 0, "b": 0, "d": 1}, {"b": 1, "c": 1}], {1}),
    "012": ([{"0": 1, "1": 0, "2": 0}, {"0": 1, "1": 0, "2": 1}], {1}),
    "even-pairs": (
        [{"a": 1, "b": 3}, {"a": 1, "b": 2}, {"a": 1, "b": 2}, {"a": 4, "b": 3}, {"a": 4, "b": 3}],
        {0, 1, 3},
    ),
}
"""Language -> next state for every legal symbol in each state, starting from state 0; and the accepting states."""
FORMULAS = {
    "aa": "(aa)*",
    "aaaa": "(aaaa)*",
    "abab": "(abab)*",
    "abcde": "aa*bb*cc*dd*ee*",
    "abdbc": "{a,b}*d{b,c}*",
    "012": "{0,1,2}*02*",
    "even-pairs": "even pairs",
}
HALF_OVER_BY = 50


@dataclass(frozen=True)
class Regular(Language):
    language: str = "aaaa"

    kind: ClassVar[str] = "regular"
    asked: ClassVar[str] = "a word of a regular language: aa, aaaa, abab, abcde, abdbc, 012, even-pairs"
    answer: ClassVar[str] = "the legal symbols, equally likely; EOS at a fixed rate where it is legal"
    published: ClassVar[str] = "Bhattamishra et al. 2020; Deletang et al. 2023 (even-pairs); Huang et al. 2025"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.language not in DFA:
            raise unknown("regular language", self.language, DFA)

    @property
    def name(self) -> str:
        return f"regular-{self.language}"

    @property
    def title(self) -> str:
        return f"Regular language {FORMULAS[self.language]}"

    @property
    def cap(self) -> int:
        return HALF_OVER_BY

    @property
    def bin_width(self) -> int:
        return 10

    @property
    def longest(self) -> int:
        return 3 * self.cap

    @property
    def marked(self) -> int:
        """EOS."""
        return len(self.token_names) - 1

    def build_automaton(self) -> Automaton:
        return automaton(self.language, end_probability(self.language))


@cache
def end_probability(language: str) -> float:
    return half_over(partial(automaton, language), HALF_OVER_BY)


def automaton(language: str, end: float) -> Automaton:
    following, accepting = DFA[language]
    symbols = list(dict.fromkeys(symbol for after in following for symbol in after))
    edges = []
    for state, after in enumerate(following):
        stop = end if state in accepting else 0.0
        out = [Edge(len(symbols) + 1, stop, END)] if stop else []
        out += [Edge(symbols.index(symbol), (1 - stop) / len(after), to) for symbol, to in after.items()]
        edges.append(tuple(out))
    return Automaton((*symbols, "BOS", "EOS"), tuple(f"q{i}" for i in range(len(edges))), tuple(edges))
