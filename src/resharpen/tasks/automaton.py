"""Probabilistic automata with exact next-token distributions: states, and the probability and next state of each token.

A coin that ends with probability 1/4 after an even number of heads:

    >>> coin = from_data({"start": "even", "states": {
    ...     "even": {"tails": [0.25, "even"], "heads": [0.5, "odd"], "end": 0.25},
    ...     "odd": {"tails": [0.5, "odd"], "heads": [0.5, "even"]}}})
    >>> coin.tokens
    ('tails', 'heads', 'BOS', 'EOS')
    >>> coin.p_star(np.array([[coin.bos, 1, 0]]))[0].tolist()  # after BOS; heads; heads, tails
    [[0.25, 0.5, 0.0, 0.25], [0.5, 0.5, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]]

An edge may push a token on a stack, or pop and emit the token on top. Transitions never depend on the stack, so the
Markov chain of states is finite and its survival probabilities are exact.

Shapes: S states, E edges of a state, V tokens, N sequences, L positions, T drawn tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resharpen.errors import UserError, unknown

Tokens = NDArray[np.int64]
Thresholds = NDArray[np.uint64]

END = -1
"""The state after EOS, and after a token that is not legal."""
NONE = -1
TOP = -2
"""As the token of an edge: pop the stack and emit the popped token."""


@dataclass(frozen=True)
class Edge:
    token: int
    probability: float
    to: int
    push: int = NONE


@dataclass(frozen=True, eq=False)
class Automaton:
    tokens: tuple[str, ...]
    """Names; the last two are BOS, the first token of every input, and EOS, which is only a target. With an `opening`
    there are neither."""
    states: tuple[str, ...]
    """Names; the first is the state after BOS."""
    edges: tuple[tuple[Edge, ...], ...]
    opening: int | None = None
    """Instead of BOS, the token that every sequence begins with; such sequences never end."""

    def __post_init__(self) -> None:
        for state, edges in zip(self.states, self.edges, strict=True):
            total = sum(edge.probability for edge in edges)
            if abs(total - 1) > 1e-9:
                raise UserError(f"state '{state}': its probabilities sum to {total:.9g}, not to 1")
        reached, ending = self._reached(0, backwards=False), self._reached(END, backwards=True)
        for i, state in enumerate(self.states):
            if i not in reached:
                raise UserError(f"state '{state}': it cannot be reached from the start '{self.states[0]}'")
            if i not in ending and self.opening is None:
                raise UserError(f"state '{state}': the end cannot be reached from it")

    @property
    def bos(self) -> int:
        return len(self.tokens) - 2 if self.opening is None else self.opening

    @property
    def eos(self) -> int:
        return len(self.tokens) - 1

    @cached_property
    def p_SxE(self) -> NDArray[np.float64]:
        return self._table("probability", 0.0)

    @cached_property
    def token_SxE(self) -> Tokens:
        return self._table("token", self.eos)

    @cached_property
    def to_SxE(self) -> Tokens:
        return self._table("to", END)

    @cached_property
    def push_SxE(self) -> Tokens:
        return self._table("push", NONE)

    @cached_property
    def thresholds_SxE(self) -> Thresholds:
        return thresholds(self.p_SxE)

    def _table(self, field: str, fill: float) -> NDArray:
        """A field of every edge, [S, E]; states with fewer edges than others are padded."""
        width = max(map(len, self.edges))
        return np.array([[getattr(e, field) for e in edges] + [fill] * (width - len(edges)) for edges in self.edges])

    def _reached(self, start: int, backwards: bool) -> set[int]:
        pairs = {(i, edge.to) for i, edges in enumerate(self.edges) for edge in edges if edge.probability > 0}
        if backwards:
            pairs = {(b, a) for a, b in pairs}
        found = {start}
        while new := {b for a, b in pairs if a in found} - found:
            found |= new
        return found

    def read(self, inputs_NxL: Tokens) -> tuple[Tokens, Tokens]:
        """State and top of the stack after every prefix, [N, L] each; END from the first illegal token on."""
        n, length = inputs_NxL.shape
        rows = np.arange(n)
        state_NxL = np.full((n, length), END)
        top_NxL = np.full((n, length), NONE)
        stack_NxL, height_N = np.full((n, length + 1), NONE), np.zeros(n, np.int64)
        state_N = np.where(inputs_NxL[:, 0] == self.bos, 0, END)
        for i in range(length):
            if i > 0:
                edge_N, pops_N = self._edge(state_N, inputs_NxL[:, i], stack_NxL[rows, height_N])
                pushes_N = np.where(edge_N >= 0, self.push_SxE[state_N, edge_N], NONE)
                height_N += (pushes_N >= 0).astype(np.int64) - pops_N
                stack_NxL[rows[pushes_N >= 0], height_N[pushes_N >= 0]] = pushes_N[pushes_N >= 0]
                state_N = np.where(edge_N >= 0, self.to_SxE[state_N, edge_N], END)
            state_NxL[:, i], top_NxL[:, i] = state_N, stack_NxL[rows, height_N]
        return state_NxL, top_NxL

    def _edge(self, state_N: Tokens, token_N: Tokens, top_N: Tokens) -> tuple[Tokens, NDArray[np.bool_]]:
        """The edge that a token takes, or -1, and whether it pops."""
        emitted_NxE = self.token_SxE[state_N]
        pops_NxE = emitted_NxE == TOP
        emitted_NxE = np.where(pops_NxE, top_N[:, None], emitted_NxE)
        fits_NxE = (emitted_NxE == token_N[:, None]) & (self.p_SxE[state_N] > 0) & (state_N >= 0)[:, None]
        edge_N = np.where(fits_NxE.any(1), fits_NxE.argmax(1), NONE)
        return edge_N, (edge_N >= 0) & pops_NxE[np.arange(len(edge_N)), edge_N]

    def p_star_of(self, state_P: Tokens, top_P: Tokens) -> NDArray[np.float64]:
        """The exact next-token distribution in given states, [P, V]; zero after an illegal token."""
        p_PxV = np.zeros((len(state_P), len(self.tokens)))
        token_PxE = np.where(self.token_SxE[state_P] == TOP, top_P[:, None], self.token_SxE[state_P])
        p_PxE = np.where((state_P >= 0)[:, None], self.p_SxE[state_P], 0)
        np.add.at(p_PxV, (np.arange(len(state_P))[:, None], token_PxE), p_PxE)
        return p_PxV

    def p_star(self, inputs_NxL: Tokens) -> NDArray[np.float64]:
        """The exact next-token distribution after every prefix, [N, L, V]; BOS is the first token of an input."""
        state_NxL, top_NxL = self.read(inputs_NxL)
        return self.p_star_of(state_NxL.ravel(), top_NxL.ravel()).reshape(*inputs_NxL.shape, -1)

    def legal_S(self, token: int) -> NDArray[np.bool_]:
        """The states in which a token that does not come from the stack is legal."""
        return ((self.token_SxE == token) & (self.p_SxE > 0)).any(1)

    def draw(self, words_NxT: NDArray[np.uint32], thresholds_TxSxE: Thresholds) -> tuple[Tokens, NDArray[np.int64]]:
        """Tokens [N, T], one per word, and their number up to and including EOS, [N].

        A word takes the first edge whose threshold is above it. After EOS follow zeros as padding.
        """
        n, steps = words_NxT.shape
        tokens_NxT = np.zeros((n, steps), np.int64)
        stack_NxT, height_N = np.full((n, steps + 1), NONE), np.zeros(n, np.int64)
        count_N, state_N = np.zeros(n, np.int64), np.zeros(n, np.int64)
        alive = np.arange(n)
        for i in range(steps):
            state = state_N[alive]
            edge = (words_NxT[alive, i, None] >= thresholds_TxSxE[min(i, len(thresholds_TxSxE) - 1), state]).sum(1)
            token, push = self.token_SxE[state, edge], self.push_SxE[state, edge]
            pops = token == TOP
            tokens_NxT[alive, i] = np.where(pops, stack_NxT[alive, height_N[alive]], token)
            height_N[alive] += (push >= 0).astype(np.int64) - pops
            stack_NxT[alive[push >= 0], height_N[alive[push >= 0]]] = push[push >= 0]
            state_N[alive] = self.to_SxE[state, edge]
            count_N[alive] += 1
            alive = alive[state_N[alive] >= 0]
            if len(alive) == 0:
                break
        return tokens_NxT, count_N

    def survival(self, steps: int) -> NDArray[np.float64]:
        """P(no EOS in the next t tokens), t = 0 .. steps, from each state, [t, S]."""
        kernel_SxS = self.chain()
        rows = [np.ones(len(self.states))]
        for _ in range(steps):
            rows.append(kernel_SxS @ rows[-1])
        return np.stack(rows)

    def surviving(self, steps: int) -> Thresholds | None:
        """Thresholds [T, S, E] of `steps` draws conditioned on no EOS; None if that is impossible.

        By Bayes, an edge's probability is multiplied by the survival of its next state over the remaining draws.
        """
        kernel_SxS = self.chain()
        alive_S, alive_TxS = np.ones(len(self.states)), np.empty((steps, len(self.states)))
        for i in reversed(range(steps)):
            alive_TxS[i] = alive_S
            alive_S = kernel_SxS @ alive_S
            alive_S = alive_S / max(alive_S.max(), 1e-300)  # only ratios matter; unscaled, it underflows
        if alive_S[0] == 0:
            return None
        return thresholds(self.p_SxE * np.where(self.to_SxE >= 0, alive_TxS[:, self.to_SxE], 0))

    def chain(self) -> NDArray[np.float64]:
        """Transition probabilities without the end, [S, S]."""
        chain_SxS = np.zeros((len(self.states), len(self.states)))
        state, edge = np.nonzero(self.to_SxE >= 0)
        np.add.at(chain_SxS, (state, self.to_SxE[state, edge]), self.p_SxE[state, edge])
        return chain_SxS


def thresholds(weight: NDArray[np.float64]) -> Thresholds:
    """Cumulative shares of 2^32 over the last axis, the edges; a word takes the first edge with a larger threshold."""
    total = weight.sum(-1, keepdims=True)
    share = np.cumsum(weight, axis=-1) / np.where(total > 0, total, 1)
    nothing_after = np.cumsum(weight[..., ::-1], axis=-1)[..., ::-1] - weight <= 0
    return np.where(nothing_after, 2**32, np.rint(share * 2.0**32)).astype(np.uint64)


def half_over(build: Callable[[float], Automaton], tokens: int) -> float:
    """The probability of EOS, where legal, for which half of the sequences end by `tokens` tokens; by bisection."""
    low, high = 0.0, 1.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        if build(middle).survival(tokens)[-1, 0] > 0.5:
            low = middle
        else:
            high = middle
    return high


def from_data(data: Mapping[str, Any]) -> Automaton:
    """An automaton from a table of states, each with token = [probability, next state] and, if a sequence may end,
    end = probability, as in `examples/my_language.toml`. Tokens are numbered in order of appearance."""
    states = data.get("states")
    if not isinstance(states, Mapping) or not states or not all(isinstance(x, Mapping) for x in states.values()):
        raise UserError('a language needs states, each a table of token = [probability, "next state"] and end = p')
    start = data.get("start", next(iter(states)))
    if start not in list(states):  # `start` may be a list, which is not hashable
        raise unknown("start state", str(start), states)
    order = [start, *(name for name in states if name != start)]
    tokens = list(dict.fromkeys(token for name in states for token in states[name] if token != "end"))
    if reserved := {"BOS", "EOS"} & set(tokens):
        raise UserError(f"token '{reserved.pop()}' is reserved: write the end as 'end'; BOS is implied")
    edges = tuple(
        tuple(_edge(name, token, value, tokens, order) for token, value in states[name].items()) for name in order
    )
    return Automaton((*tokens, "BOS", "EOS"), tuple(order), edges)


def _edge(state: str, token: str, value: Any, tokens: list[str], states: list[str]) -> Edge:
    if token == "end":
        return Edge(len(tokens) + 1, _probability(state, token, value), END)
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        raise UserError(f"state '{state}': token '{token}' has no transition; write {token} = [probability, \"state\"]")
    probability, to = value
    if to not in states:
        raise unknown(f"next state of token '{token}' in state '{state}':", str(to), states)
    return Edge(tokens.index(token), _probability(state, token, probability), states.index(to))


def _probability(state: str, token: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise UserError(f"state '{state}': the probability of '{token}' is {value!r}, not a number from 0 to 1")
    return float(value)
