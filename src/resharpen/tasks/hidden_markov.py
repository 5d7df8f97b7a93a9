"""Hidden Markov: tokens emitted by a hidden Markov chain.

T(t)[i, j] is the probability to emit t and to go from state i to j. mess3 has three tokens and three states; repeated
tokens make the corresponding state more likely:

    >>> HiddenMarkov().p_star(np.array([[0, 0, 0]]))[0].round(3).tolist()
    [[0.674, 0.163, 0.163], [0.756, 0.122, 0.122], [0.765, 0.118, 0.118]]

p* is that of the forward algorithm: with b the distribution of the state given the prefix, p*(t) = sum_ij b_i T(t)_ij.
Other processes are given as `matrices`, one per token, and `start`, the distribution of the first state.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from resharpen.errors import UserError
from resharpen.plain import build, shown
from resharpen.tasks.task import ROUNDING, Tokens, TokenTask


@dataclass(frozen=True)
class HiddenMarkov(TokenTask):
    x: float = 0.05
    a: float = 0.85
    """Parameters of mess3."""
    process: str = ""
    """Another process, as JSON: {"matrices": [..], "start": [..]}. `from_data` takes both as lists."""

    kind: ClassVar[str] = "hidden-markov"
    asked: ClassVar[str] = "the next token of a hidden Markov model: mess3, or your own matrices"
    answer: ClassVar[str] = "the forward algorithm: the belief about the hidden state, times the emission matrices"
    published: ClassVar[str] = "Shai et al. 2024: the belief can be decoded linearly from the residual stream"
    sequences: ClassVar[int] = 128
    bin_width: ClassVar[int] = 8

    def __post_init__(self) -> None:
        if not (0 < self.x < 0.5 and 0 < self.a < 1):
            raise ValueError(f"x = {self.x}, a = {self.a}: 0 < x < 1/2 and 0 < a < 1")
        T, start = self.T_VxSxS, self.start_S
        if T.ndim != 3 or T.shape[1] != T.shape[2] or start.shape != T.shape[1:2]:
            raise UserError("matrices: must be square, one per token; start: must have one number per state")
        if (T < 0).any() or not np.allclose(T.sum((0, 2)), 1, atol=ROUNDING):
            raise UserError("matrices: must be probabilities that sum to 1 over tokens and next states")
        if (start < 0).any() or abs(start.sum() - 1) > ROUNDING:
            raise UserError("start: must be probabilities that sum to 1")

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        own = {name: data[name] for name in ("matrices", "start") if name in data}
        rest = {name: value for name, value in data.items() if name not in own}
        return build(cls, rest | ({"process": json.dumps(own)} if own else {}), "[task]")

    @cached_property
    def T_VxSxS(self) -> NDArray[np.float64]:
        if self.process:
            return self._given("matrices", [])
        x, y, a, b = self.x, 1 - 2 * self.x, self.a, (1 - self.a) / 2
        T_VxSxS = np.empty((3, 3, 3))
        for t in range(3):
            to_S = np.where(np.arange(3) == t, a, b)  # probability to emit this token in each state
            T_VxSxS[t] = to_S * np.where(np.eye(3), y, x)
        return T_VxSxS

    @cached_property
    def start_S(self) -> NDArray[np.float64]:
        states = self.T_VxSxS.shape[-1] if self.T_VxSxS.ndim == 3 else 1
        return self._given("start", [1 / states] * states)

    def _given(self, name: str, default: list[float]) -> NDArray[np.float64]:
        """From the JSON of the process."""
        try:
            return np.array(json.loads(self.process or "{}").get(name, default), np.float64)
        except (TypeError, ValueError, AttributeError):
            raise UserError(f"process: must have the lists matrices and start, not {shown(self.process)}") from None

    @property
    def name(self) -> str:
        if self.process:
            return f"hidden-{hashlib.blake2b(self.process.encode(), digest_size=4).hexdigest()}"
        return f"mess3-x{self.x:g}-a{self.a:g}"

    @property
    def title(self) -> str:
        return "Hidden Markov model" if self.process else f"mess3, x = {self.x:g}, a = {self.a:g}"

    @property
    def usual_train_length(self) -> int:
        return 32

    @property
    def vocabulary(self) -> int:
        return len(self.T_VxSxS)

    def as_data(self) -> dict[str, Any]:
        return {"x": self.x, "a": self.a, **json.loads(self.process or "{}")}

    def sample(self, words_NxT: NDArray[np.uint32]) -> Tokens:
        """One random word selects token and next state together; the first one starts from `start`."""
        tokens_NxT, states = np.empty(words_NxT.shape, np.int64), len(self.start_S)
        reached_SxE = np.concatenate([self.T_VxSxS, self.start_S @ self.T_VxSxS[:, None]], axis=1)
        reached_SxE = reached_SxE.transpose(1, 0, 2).reshape(states + 1, -1).cumsum(axis=1)
        uniform_NxT, state_N = words_NxT * 2.0**-32, np.full(len(words_NxT), states)
        for i in range(words_NxT.shape[1]):
            here_NxE = reached_SxE[state_N]
            edge_N = (here_NxE[:, :-1] <= uniform_NxT[:, i, None] * here_NxE[:, -1:]).sum(axis=1)
            tokens_NxT[:, i], state_N = np.divmod(edge_N, states)
        return tokens_NxT

    def p_star(self, inputs_NxL: Tokens) -> NDArray[np.float64]:
        """The exact next-token distribution after every prefix, [N, L, V]."""
        emitted_SxV = self.T_VxSxS.sum(axis=2).T
        belief_NxS = np.broadcast_to(self.start_S, (len(inputs_NxL), len(self.start_S)))
        p_NxLxV = np.empty((*inputs_NxL.shape, self.vocabulary))
        for i in range(inputs_NxL.shape[1]):
            belief_NxS = np.einsum("ns,nst->nt", belief_NxS, self.T_VxSxS[inputs_NxL[:, i]])
            total_Nx1 = belief_NxS.sum(axis=1, keepdims=True)  # zero after an impossible token
            belief_NxS = belief_NxS / np.where(total_Nx1 > 0, total_Nx1, 1)
            p_NxLxV[:, i] = belief_NxS @ emitted_SxV
        return p_NxLxV
