"""Base class of formal languages: minibatches, exact scores, and validation sets at lengths beyond training.

The length of a prefix is its number of input tokens, BOS included. A training sequence is cut at the training length;
its last input keeps its true target. EOS is never an input.

Shapes: N sequences, L positions, V tokens, P scored prefixes, M models.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from resharpen import streams
from resharpen.errors import UserError, unknown
from resharpen.lazy import Tensor
from resharpen.metrics import ByLength, equal_length_auc
from resharpen.plain import known, typed
from resharpen.tasks.automaton import Automaton, from_data
from resharpen.tasks.metrics import TVD
from resharpen.tasks.task import Batch, Examples, Measured, Metric, SequenceTask, Tokens, defined_places
from resharpen.tasks.validation import SurvivingSet, ValidationSet, surviving_set


@dataclass(frozen=True, kw_only=True)
class Language(SequenceTask, ABC):
    """A task on a probabilistic automaton. A subclass is a frozen dataclass that builds it."""

    sequences: int = 128
    """Sequences in the report set, each of the longest length. A smaller set is a prefix of a larger one."""
    selection_sequences: int = 32
    """Sequences in the selection set, which is scored at every checkpoint."""

    measures: ClassVar[tuple[str, ...]] = ("tvd", "marked")

    @property
    def not_resampled(self) -> tuple[str, ...]:
        """The AUC, which is slow because it sorts, unless it selects checkpoints."""
        return () if self.metric == "auc" else ("marked",)

    def __post_init__(self) -> None:
        for name in ("sequences", "selection_sequences"):
            if getattr(self, name) < 2:
                raise ValueError(f"{name} = {getattr(self, name)}: at least 2, so that prefixes can be compared")

    @abstractmethod
    def build_automaton(self) -> Automaton: ...

    @property
    @abstractmethod
    def cap(self) -> int:
        """The maximum training length of the paper, from which the validation lengths follow."""

    @property
    def marked(self) -> int | None:
        """The token whose logit should separate the prefixes where it is legal from those where it is not: their AUC.
        None: no AUC, and `measures` are then without "marked"."""
        return None

    @property
    def bin_width(self) -> int:
        return self.cap // 4

    @property
    def longest(self) -> int:
        """The longest prefix that is validated."""
        return 8 * self.bin_width

    @cached_property
    def automaton(self) -> Automaton:
        return self.build_automaton()

    @property
    def vocabulary(self) -> int:
        return len(self.automaton.tokens)

    @property
    def usual_train_length(self) -> int:
        return self.cap

    @property
    def token_names(self) -> tuple[str, ...]:
        return self.automaton.tokens

    @property
    def metrics(self) -> dict[str, Metric]:
        found = {"tvd": TVD}
        if self.marked is not None:
            label = f"ROC AUC of the logit of {self.token_names[self.marked]}"
            found["auc"] = Metric(label, guess=0.5, range=(0.0, 1.0))
        every = self._shown_first(found | self.further_metrics())
        return {name: replace(about, bin=self.bin_width) for name, about in every.items()}

    def marks(self, train_length: int) -> dict[str, int]:
        """The training cap, and if sequences end, their 99th percentile: most end long before the cap."""
        if self.automaton.opening is not None:
            return {"training length": train_length}
        return {
            "99th percentile of training lengths": self.length_quantile(0.99, train_length),
            "training cap": train_length,
        }

    @property
    def reported_lengths(self) -> list[int]:
        """Ends of the bins."""
        return list(range(self.bin_width, self.longest + 1, self.bin_width))

    def batch(self, key: streams.Key, group: int, step: int, n: int, train_length: int) -> Batch:
        """Inputs, targets and mask, [N, L] each, L being the longest sequence of the minibatch.

        Each sequence has train_length words of its own, rounded up to whole blocks of four.
        """
        stride = 4 * ((train_length + 3) // 4)
        words = streams.words(key, n * stride, group, step).reshape(n, stride)[:, :train_length]
        targets, count_N = self.automaton.draw(words, self.automaton.thresholds_SxE[None])
        targets = targets[:, : count_N.max()]
        real = np.arange(targets.shape[1]) < count_N[:, None]
        first = np.full((n, 1), self.automaton.bos)
        return Batch(np.where(real, np.concatenate([first, targets[:, :-1]], axis=1), 0), targets, real)

    def p_star(self, inputs_NxL: Tokens) -> NDArray[np.float64]:
        """The exact next-token distribution after every prefix, [N, L, V]."""
        return self.automaton.p_star(inputs_NxL)

    def length_quantile(self, q: float, train_length: int) -> int:
        """The q quantile of the lengths of training sequences, which are cut at train_length."""
        alive_T = self.automaton.survival(train_length)[:, 0]  # P(the input is longer than t)
        return int(np.argmax([*(alive_T[1:train_length] <= 1 - q), True])) + 1

    def validation(self, seed: int, use: str, sequences: int | None = None) -> SurvivingSet:
        """The `selection` or the `report` set: sequences that reach the longest length."""
        count = sequences or (self.selection_sequences if use == "selection" else self.sequences)
        return surviving_set(self.automaton, streams.key(seed, self.name, "validation", use), count, self.longest)

    def examples(self, validation: ValidationSet) -> Examples:
        """The targets of a prefix are its p*, and whether the marked token is legal, if there is one."""
        inputs, scored = validation.inputs_NxL.astype(np.int64), validation.scored_NxL
        state_NxL, top_NxL = self.automaton.read(inputs)
        p_star = self.automaton.p_star_of(state_NxL[scored], top_NxL[scored])
        marked = {} if self.marked is None else {"marked": np.full(len(p_star), self.marked)}
        return Examples(inputs, scored, {"p_star": p_star, **marked})

    def score(self, logits_MxPxV: Tensor, truth: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if "marked" not in truth:
            return super().score(logits_MxPxV, truth)
        token_MxPx1 = truth["marked"].expand(logits_MxPxV.shape[:-1])[..., None]
        return {**super().score(logits_MxPxV, truth), "marked": logits_MxPxV.gather(-1, token_MxPx1)[..., 0]}

    def by_length(self, measured: Measured, validation: SurvivingSet) -> dict[str, ByLength]:
        """Per bin, with prefixes weighted as they occur: means of what is measured at a place, and ROC AUC of the
        marked token's logit over pairs of prefixes of equal length, the token being legal after one of them. nan where
        there is no such pair.
        """
        found = {}
        weight_NxL = validation.weight_NxL * validation.alive_L
        defined = {name: x.reshape(weight_NxL.shape) for name, x in defined_places(self, validation, measured).items()}
        for name in (name for name in measured if name != "marked"):
            values_MxNxL = _unflat(measured[name], validation)
            found[name] = self._binned(values_MxNxL, weight_NxL, defined.get(name))
        if "marked" in measured:
            found["auc"] = self._auc(_unflat(measured["marked"], validation), validation)
        for name, of in self.of_sequences(defined).items():
            found[name] = self._exact(_unflat(measured[of], validation), defined[of], weight_NxL)
        return found

    def _bins(self, length: int) -> list[slice]:
        """The lengths of each bin, as positions."""
        return [slice(end - self.bin_width, min(end, length)) for end in self.reported_lengths]

    def _binned(
        self,
        values_MxNxL: NDArray[np.floating],
        weight_NxL: NDArray[np.float64],
        defined_NxL: NDArray[np.bool_] | None = None,
    ) -> ByLength:
        """Weighted means bin by bin, over the places where the values are defined."""
        columns, counts = [], []
        for here in self._bins(weight_NxL.shape[1]):
            weight_NxB, values_MxNxB = np.ascontiguousarray(weight_NxL[:, here]), values_MxNxL[..., here]
            count = weight_NxB.size
            if defined_NxL is not None:
                there_NxB = defined_NxL[:, here]
                weight_NxB, values_MxNxB = weight_NxB * there_NxB, np.where(there_NxB, values_MxNxB, 0)
                count = int(there_NxB.sum())
            columns.append(_mean(values_MxNxB, weight_NxB))
            counts.append(count)
        return np.array(self.reported_lengths), np.stack(columns, axis=1), np.array(counts)

    def _auc(self, marked_MxNxL: NDArray[np.floating], validation: SurvivingSet) -> ByLength:
        assert self.marked is not None
        state_NxL, _ = self.automaton.read(validation.inputs_NxL.astype(np.int64))
        legal_NxL = self.automaton.legal_S(self.marked)[state_NxL]
        share_L, columns, counts = legal_NxL.mean(axis=0), [], []
        for here in self._bins(legal_NxL.shape[1]):
            weight_NxB, alive_B = validation.weight_NxL[:, here], validation.alive_L[here]
            columns.append(equal_length_auc(marked_MxNxL[..., here], legal_NxL[:, here], weight_NxB, alive_B))
            both_B = (share_L[here] > 0) & (share_L[here] < 1)  # a length without pairs carries no information
            counts.append(len(legal_NxL) * int(both_B.sum()))
        return np.array(self.reported_lengths), np.stack(columns, axis=1), np.array(counts)

    def _exact(
        self, error_MxNxL: NDArray[np.floating], defined_NxL: NDArray[np.bool_], weight_NxL: NDArray[np.float64]
    ) -> ByLength:
        """Of the sequences that are alive at the end of a bin, the share without an error up to there."""
        wrong_MxNxL = np.cumsum(np.where(defined_NxL, error_MxNxL, 0), axis=2)
        exact_MxNxL = np.where(np.isnan(wrong_MxNxL), np.nan, wrong_MxNxL < 0.5)
        ends = np.zeros(weight_NxL.shape, bool)
        ends[:, [here.stop - 1 for here in self._bins(weight_NxL.shape[1]) if here.stop > here.start]] = True
        return self._binned(exact_MxNxL, weight_NxL, ends & (np.cumsum(defined_NxL, axis=1) > 0))


def _unflat(values_MxP: NDArray[np.floating], validation: SurvivingSet) -> NDArray[np.floating]:
    return values_MxP.reshape(len(values_MxP), *validation.inputs_NxL.shape)


def _mean(values_MxNxB: NDArray[np.floating], weight_NxB: NDArray[np.float64]) -> NDArray[np.float64]:
    if weight_NxB.sum() == 0:
        return np.full(len(values_MxNxB), np.nan)
    return np.einsum("mnb,nb->m", values_MxNxB, weight_NxB, dtype=np.float64) / weight_NxB.sum()


@dataclass(frozen=True)
class OwnLanguage(Language):
    """A language defined by the user; `from_data` creates one."""

    language: str
    definition: str
    """The argument of `automaton.from_data`, as JSON."""
    training_cap: int
    """The training length of a setting may be shorter."""
    marked_token: str

    kind: ClassVar[str] = "automaton"
    asked: ClassVar[str] = "a word of your own language, given as a table of states"
    answer: ClassVar[str] = "the probabilities of the table"
    published: ClassVar[str] = "see examples/my_language.toml"
    knows_training: ClassVar[bool] = True

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> OwnLanguage:
        """From a table such as the [task] of a TOML file."""
        sized = ("sequences", "selection_sequences")
        known("field of a language", data, ("name", "start", "states", "train_length", "marked", *sized))
        sizes = {name: typed(name, data[name], int) for name in sized if name in data}
        name, cap, marked = data.get("name", "own"), data.get("train_length", 100), data.get("marked", "end")
        if not re.fullmatch(r"[A-Za-z0-9_-]+", typed("name", name, str)):
            raise UserError(f"name = {name!r}: allowed are letters, digits, '-' and '_'")
        if not isinstance(cap, int) or cap < 4:
            raise UserError(f"training length {cap!r}: a whole number, at least 4")
        for size, value in sizes.items():
            if not isinstance(value, int):
                raise UserError(f"{size} = {value!r}: must be a whole number")
        tokens = from_data(data).tokens[:-2]
        if marked not in (*tokens, "end"):
            raise unknown("marked token", str(marked), (*tokens, "end"))
        definition = json.dumps({key: data[key] for key in ("start", "states") if key in data})
        return cls(name, definition, cap, marked, **sizes)

    def as_data(self) -> dict[str, Any]:
        named = {"name": self.language, "train_length": self.training_cap, "marked": self.marked_token}
        sizes = {"sequences": self.sequences, "selection_sequences": self.selection_sequences}
        return named | sizes | json.loads(self.definition)

    @property
    def name(self) -> str:
        return self.language

    @property
    def cap(self) -> int:
        return self.training_cap

    def build_automaton(self) -> Automaton:
        return from_data(json.loads(self.definition))

    @property
    def marked(self) -> int:
        tokens = self.automaton.tokens
        return self.automaton.eos if self.marked_token == "end" else tokens.index(self.marked_token)
