"""Fixed sets of prefixes to score models on.

A `SurvivingSet` serves all lengths of a language: every sequence reaches the longest length L, and importance weights
undo the condition. Given no EOS before L, the state s of a sequence at length l < L has probability proportional to
pi_l(s) h_{L-l}(s), where pi_l is the unconditional law of the states of sequences that are alive at l, and h_r(s) the
probability of r more tokens without EOS. The weight 1 / h_{L-l}(s), normalized at each length, gives back pi_l exactly.

Shapes: N sequences, L input tokens, BOS included, P scored prefixes, S states.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resharpen import streams
from resharpen.tasks.automaton import Automaton


@dataclass(frozen=True, eq=False)
class ValidationSet:
    """N sequences of L input tokens, and which of their prefixes are scored, by their last token.

    Results are in row-major order of `scored`. Tokens after the last scored position are padding.
    """

    inputs_NxL: NDArray[np.int64]
    scored_NxL: NDArray[np.bool_]
    length_NxL: NDArray[np.int64] | None = None
    """The length at which a place is reported, if it is not the number of its input tokens."""
    sampled: bool = True
    """False if the set contains every state: then its values have no sampling error."""

    @cached_property
    def length_P(self) -> NDArray[np.int64]:
        """The length of each scored prefix."""
        if self.length_NxL is not None:
            return self.length_NxL[self.scored_NxL]
        return np.nonzero(self.scored_NxL)[1] + 1

    def pieces(self, positions: int) -> Iterator[ValidationSet]:
        """The same prefixes in order, in sets of about this many positions, to bound memory."""
        rows = max(1, positions // self.inputs_NxL.shape[1])
        for start in range(0, len(self.inputs_NxL), rows):
            yield self.take(slice(start, start + rows))

    @property
    def sequences(self) -> int:
        return len(self.inputs_NxL)

    def blocks_P(self, blocks: int) -> NDArray[np.int64]:
        """The block of each scored prefix: sequences are assigned to blocks in turn."""
        return np.nonzero(self.scored_NxL)[0] % blocks

    def without(self, block: int, blocks: int) -> ValidationSet:
        return self.take(np.arange(len(self.inputs_NxL)) % blocks != block)

    def take(self, rows: Any) -> ValidationSet:
        """A subset of the sequences."""
        length = None if self.length_NxL is None else self.length_NxL[rows]
        return ValidationSet(self.inputs_NxL[rows], self.scored_NxL[rows], length, self.sampled)


@dataclass(frozen=True, eq=False)
class SurvivingSet(ValidationSet):
    weight_NxL: NDArray[np.float64] = field(kw_only=True)
    """Importance weight of a prefix; the weights of each length sum to one."""
    alive_L: NDArray[np.float64] = field(kw_only=True)
    """Probability that a sequence is alive at a length, up to a common factor."""

    def take(self, rows: Any) -> SurvivingSet:
        weight_NxL = self.weight_NxL[rows]
        return SurvivingSet(
            self.inputs_NxL[rows],
            self.scored_NxL[rows],
            weight_NxL=weight_NxL / weight_NxL.sum(axis=0),
            alive_L=self.alive_L,
        )


def surviving_set(automaton: Automaton, key: streams.Key, sequences: int, longest: int) -> SurvivingSet:
    """Sequences that reach the longest length, or the largest length that any sequence can reach."""
    log_alive_LxS = log_survival(automaton, longest - 1)
    length = int(np.isfinite(log_alive_LxS[:, 0]).sum())
    thresholds = automaton.surviving(length - 1)
    assert thresholds is not None
    words = streams.words(key, length, np.arange(sequences))
    tokens_NxT, _ = automaton.draw(words[:, : length - 1], thresholds)
    inputs_NxL = np.concatenate([np.full((sequences, 1), automaton.bos), tokens_NxT], axis=1)
    state_NxL, _ = automaton.read(inputs_NxL)
    further_L = length - 1 - np.arange(length)  # tokens that remain
    log_weight_NxL = -log_alive_LxS[further_L, state_NxL]
    weight_NxL = np.exp(log_weight_NxL - log_weight_NxL.max(axis=0))
    alive_L = np.exp(log_alive_LxS[:length, 0])
    narrow = inputs_NxL.astype(np.min_scalar_type(len(automaton.tokens)))
    weight_NxL /= weight_NxL.sum(axis=0)
    return SurvivingSet(narrow, np.ones(narrow.shape, bool), weight_NxL=weight_NxL, alive_L=alive_L)


def log_survival(automaton: Automaton, steps: int) -> NDArray[np.float64]:
    """log P(no EOS in the next t tokens), t = 0 .. steps, from each state, [t, S]; unlike P it does not underflow."""
    chain_SxS = automaton.chain()
    alive_S, scale, rows = np.ones(len(automaton.states)), 0.0, []
    for _ in range(steps + 1):
        with np.errstate(divide="ignore"):
            rows.append(np.log(alive_S) + scale)
        alive_S = chain_SxS @ alive_S
        if largest := alive_S.max():
            alive_S, scale = alive_S / largest, scale + np.log(largest)
    return np.stack(rows)
