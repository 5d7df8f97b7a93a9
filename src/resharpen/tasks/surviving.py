"""One set of sequences for every length: all go on to the longest, and weights undo that they had to.

Draw sequences given that none ends before length L, and look at them at length l, when each is in some state s. Under
that condition the state has probability proportional to pi_l(s) h_{L-l}(s), where pi_l is the law of the states of
sequences that are alive at l and h_r(s) the probability of r more tokens without the end. So the weight 1 / h_{L-l}(s),
normalized at each length, gives back pi_l exactly: every prefix of every sequence counts, at its own length, as one
that occurs by nature.

Shapes: N sequences, L input tokens, BOS included, S states.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resharpen import streams
from resharpen.tasks.automaton import Automaton
from resharpen.tasks.validation import ValidationSet


@dataclass(frozen=True, eq=False)
class SurvivingSet(ValidationSet):
    weight_NxL: NDArray[np.float64] = field(kw_only=True)
    """Of a prefix among those of its length; they sum to one."""
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
    """Sequences that are alive at the longest length, or at the last one that any sequence reaches."""
    log_alive_LxS = log_survival(automaton, longest - 1)
    length = int(np.isfinite(log_alive_LxS[:, 0]).sum())
    thresholds = automaton.surviving(length - 1)
    assert thresholds is not None
    words = streams.words(key, length, np.arange(sequences))
    tokens_NxT, _ = automaton.draw(words[:, : length - 1], thresholds)
    inputs_NxL = np.concatenate([np.full((sequences, 1), automaton.bos), tokens_NxT], axis=1)
    state_NxL, _ = automaton.read(inputs_NxL)
    further_L = length - 1 - np.arange(length)  # tokens that a sequence had yet to survive
    log_weight_NxL = -log_alive_LxS[further_L, state_NxL]
    weight_NxL = np.exp(log_weight_NxL - log_weight_NxL.max(axis=0))
    alive_L = np.exp(log_alive_LxS[:length, 0])
    narrow = inputs_NxL.astype(np.min_scalar_type(len(automaton.tokens)))
    weight_NxL /= weight_NxL.sum(axis=0)
    return SurvivingSet(narrow, np.ones(narrow.shape, bool), weight_NxL=weight_NxL, alive_L=alive_L)


def log_survival(automaton: Automaton, steps: int) -> NDArray[np.float64]:
    """log P(no end in the next t tokens), t = 0 .. steps, from each state, [t, S]; in logarithms a long wait does not
    underflow."""
    chain_SxS = automaton.chain()
    alive_S, scale, rows = np.ones(len(automaton.states)), 0.0, []
    for _ in range(steps + 1):
        with np.errstate(divide="ignore"):
            rows.append(np.log(alive_S) + scale)
        alive_S = chain_SxS @ alive_S
        if largest := alive_S.max():
            alive_S, scale = alive_S / largest, scale + np.log(largest)
    return np.stack(rows)
