"""What the formal languages share: minibatches, exact scores, and validation sets at lengths beyond training.

The length of a prefix is its number of input tokens with BOS. A training sequence is cut at the maximum training
length, its last input keeping its true target; EOS is never an input.

Shapes: N sequences, L positions, V tokens, P scored prefixes, M models.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from resharpen import streams
from resharpen.errors import UserError, unknown
from resharpen.metrics import ByLength, roc_auc
from resharpen.plain import known
from resharpen.tasks import scores
from resharpen.tasks.automaton import Automaton, from_data
from resharpen.tasks.task import Batch, Examples, Measured, Metric, Task, Tokens
from resharpen.tasks.validation import ValidationSet

if TYPE_CHECKING:
    from torch import Tensor

METRICS = ("tvd", "auc")


@dataclass(frozen=True, kw_only=True)
class Language(Task, ABC):
    """A task on a probabilistic automaton. A subclass is a frozen dataclass that says which, and which lengths."""

    sequences: int = 128
    """Sequences a bin or length in the report set. Fewer are the first of more, here and below."""
    selection_sequences: int = 64
    """Sequences a bin or length in the selection set, which is scored at every checkpoint."""

    measures: ClassVar[tuple[str, ...]] = ("tvd", "marked")

    def __post_init__(self) -> None:
        for name in ("sequences", "selection_sequences"):
            if getattr(self, name) < 2:
                raise ValueError(f"{name} = {getattr(self, name)}: at least 2, one to tell from another")

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    @abstractmethod
    def automaton(self) -> Automaton: ...

    @property
    @abstractmethod
    def cap(self) -> int:
        """The maximum training length of the paper, which the lengths to validate at go by."""

    @property
    @abstractmethod
    def bin_width(self) -> int: ...

    @property
    @abstractmethod
    def longest(self) -> int:
        """The longest prefix that is validated."""

    @property
    @abstractmethod
    def marked(self) -> int:
        """The token whose logit is to tell the prefixes where it is legal from those where it is not."""

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
        marked = f"ROC AUC of the logit of {self.token_names[self.marked]}"
        both = {
            "tvd": Metric("TVD", lower_is_better=True, worst=1.0, bin=self.bin_width),
            "auc": Metric(marked, guess=0.5),
        }
        return {self.metric: both[self.metric], **both}

    def marks(self, train_length: int) -> dict[str, int]:
        """Natural sequences are much shorter than the cap."""
        return {
            "99th percentile of training lengths": self.length_quantile(0.99, train_length),
            "training cap": train_length,
        }

    @property
    def auc_lengths(self) -> list[int]:
        return self.bin_ends

    @property
    def bin_ends(self) -> list[int]:
        return list(range(self.bin_width, self.longest + 1, self.bin_width))

    def check_train_length(self, train_length: int) -> None:
        if not 1 <= train_length <= self.longest:
            raise ValueError(f"training length {train_length}: for {self.name} 1..{self.longest}")

    def batch(self, key: streams.Key, group: int, step: int, n: int, train_length: int) -> Batch:
        """Minibatch `step` of a group of draws: inputs, targets, and which of them are real, [N, L] each.

        L is the longest of the minibatch. Each sequence has train_length words of its own, rounded up to whole blocks.
        """
        stride = words_per_sequence(train_length)
        words = streams.words(key, n * stride, group, step).reshape(n, stride)[:, :train_length]
        targets, count_N = self.automaton.draw(words, self.automaton.thresholds_SxE[None])
        targets = targets[:, : count_N.max()]
        real = np.arange(targets.shape[1]) < count_N[:, None]
        first = np.full((n, 1), self.automaton.bos)
        return Batch(np.where(real, np.concatenate([first, targets[:, :-1]], axis=1), 0), targets, real)

    def p_star(self, inputs_NxL: Tokens) -> NDArray[np.float64]:
        """The exact next-token distribution after every prefix, [N, L, V]."""
        return self.automaton.p_star(inputs_NxL)

    def accepts(self, string: Sequence[int]) -> bool:
        return self.automaton.accepts(string)

    def length_quantile(self, q: float, train_length: int) -> int:
        """The smallest length that a share q of the training sequences, cut as they are, does not exceed."""
        alive_T = self.automaton.survival(train_length)[:, 0]  # of t tokens: the input is longer than t
        return int(np.argmax([*(alive_T[1:train_length] <= 1 - q), True])) + 1

    def validation(self, seed: int, use: str, sequences: int | None = None) -> LanguageValidation:
        """The `selection` set, for the metric that checkpoints are chosen by, or the `report` set, for both."""
        key = streams.key(seed, self.name, "validation", use)
        if use == "selection":
            return LanguageValidation(self, key, sequences or self.selection_sequences, (self.metric,))
        return LanguageValidation(self, key, sequences or self.sequences, METRICS)

    def examples(self, validation: Prefixes) -> Examples:
        inputs, scored = validation.inputs_NxL.astype(np.int64), validation.scored_NxL
        if validation.marked is not None:
            return Examples(inputs, scored, {"marked": np.full(int(scored.sum()), validation.marked)})
        state_NxL, top_NxL = self.automaton.read(inputs)
        return Examples(inputs, scored, {"p_star": self.automaton.p_star_of(state_NxL[scored], top_NxL[scored])})

    def score(self, logits_MxPxV: Tensor, truth: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """TVD where p* is known, the logit of the marked token where one is marked."""
        if "marked" in truth:
            return {"marked": scores.marked_logit(logits_MxPxV, truth["marked"])}
        return super().score(logits_MxPxV, truth)

    def by_length(self, measured: Measured, validation: LanguageValidation) -> dict[str, ByLength]:
        """Mean TVD of all prefixes of each bin; ROC AUC at each length; nan for a set that cannot be."""
        columns: dict[str, list] = {metric: [] for metric in validation.metrics}
        begin = {"tvd": 0, "auc": 0}
        for metric, length, prefixes in validation.sets():
            n = int(prefixes.scored_NxL.sum())
            value_MxN = measured["marked" if metric == "auc" else metric][:, begin[metric] : begin[metric] + n]
            legal_N = np.arange(n) < n // 2
            mean_M = value_MxN.sum(1, dtype=np.float64) / n if n else np.full(len(value_MxN), np.nan)
            columns[metric].append((length, roc_auc(value_MxN, legal_N) if metric == "auc" else mean_M, n))
            begin[metric] += n
        return {
            metric: (np.array(lengths), np.stack(values, axis=1), np.array(counts))
            for metric, (lengths, values, counts) in ((m, zip(*rows, strict=True)) for m, rows in columns.items())
        }


def words_per_sequence(train_length: int) -> int:
    return 4 * ((train_length + 3) // 4)


@dataclass(frozen=True, eq=False)
class Prefixes(ValidationSet):
    """Prefixes to be scored by their TVD, or by the logit of one marked token."""

    marked: int | None = None

    def pieces(self, positions: int) -> Iterator[Prefixes]:
        for piece in super().pieces(positions):
            yield Prefixes(piece.inputs_NxL, piece.scored_NxL, self.marked)


@dataclass(frozen=True, eq=False)
class LanguageValidation:
    """A set of prefixes for every bin (TVD) and for every length (ROC AUC), drawn when it is first asked for.

    Per-prefix results are in the order of `sets`.
    """

    language: Language
    key: streams.Key
    sequences: int
    metrics: tuple[str, ...]
    _drawn: dict[tuple[str, int], Prefixes] = field(default_factory=dict)

    def sets(self) -> Iterator[tuple[str, int, Prefixes]]:
        """Metric, length (a bin's is its end) and prefixes; a set that cannot be has no prefixes."""
        for metric in self.metrics:
            for length in self.language.bin_ends if metric == "tvd" else self.language.auc_lengths:
                if (metric, length) not in self._drawn:
                    self._drawn[metric, length] = self.bin(length) if metric == "tvd" else self.at_length(length)
                yield metric, length, self._drawn[metric, length]

    def pieces(self, positions: int) -> Iterator[Prefixes]:
        """The same prefixes in order, in sets of about so many positions: for bounded memory."""
        for _, _, prefixes in self.sets():
            yield from prefixes.pieces(positions)

    def bin(self, end: int) -> Prefixes:
        """All prefixes with lengths in (end - width, end] of sequences that are alive at its beginning."""
        automaton, begin = self.language.automaton, end - self.language.bin_width
        alive = automaton.surviving(max(0, begin - 1))
        if alive is None:
            return self._nothing()
        table = np.concatenate([alive, automaton.thresholds_SxE[None]])
        words = streams.words(self.key, self.sequences * end, end, 0).reshape(self.sequences, end)
        tokens, count_N = automaton.draw(words, table)
        length_N = np.minimum(count_N, end)  # BOS comes in, EOS goes out
        position = np.arange(end)
        scored = (position >= begin) & (position < length_N[:, None])
        return Prefixes(self._inputs(tokens[:, :-1], position < length_N[:, None]), scored)

    def at_length(self, length: int) -> Prefixes:
        """Prefixes of one length, in the first half those after which the marked token is legal."""
        automaton, half, inputs = self.language.automaton, self.sequences // 2, []
        legal_S = automaton.legal_S(self.language.marked)
        for i, wanted_S in enumerate((legal_S, ~legal_S)):
            table = automaton.surviving(length - 1, wanted_S)
            if table is None:
                return self._nothing()
            words = streams.words(self.key, half * (length - 1), length, 1 + i).reshape(half, length - 1)
            inputs.append(automaton.draw(words, table)[0])
        tokens = np.concatenate(inputs)
        scored = np.zeros((2 * half, length), bool)
        scored[:, -1] = True
        return Prefixes(self._inputs(tokens, np.ones_like(scored)), scored, self.language.marked)

    def _nothing(self) -> Prefixes:
        return Prefixes(np.zeros((0, 1), np.int64), np.zeros((0, 1), bool))

    def _inputs(self, tokens_NxT: Tokens, real_NxL: NDArray[np.bool_]) -> NDArray:
        first = np.full((len(tokens_NxT), 1), self.language.automaton.bos)
        inputs = np.where(real_NxL, np.concatenate([first, tokens_NxT], axis=1), 0)
        return inputs.astype(np.min_scalar_type(self.language.vocabulary))  # a report set is millions of tokens


@dataclass(frozen=True)
class OwnLanguage(Language):
    """A language of the user's own; `from_data` makes one."""

    language: str
    definition: str
    """The states as `automaton.from_data` takes them, as JSON."""
    training_cap: int
    """Not `train_length`, which is the setting's own and may be shorter."""
    marked_token: str

    kind: ClassVar[str] = "automaton"

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> OwnLanguage:
        """From a table such as the [task] of a TOML file: name, states, start, train_length, and the marked token."""
        sizes = {name: data[name] for name in ("sequences", "selection_sequences") if name in data}
        allowed = ("name", "start", "states", "train_length", "marked", "sequences", "selection_sequences")
        known("field of a language", data, allowed)
        if not re.fullmatch(r"[A-Za-z0-9_-]+", str(data.get("name", "own"))):
            raise UserError(f"name = {data['name']!r}: allowed are letters, digits, '-' and '_'")
        name, cap, marked = data.get("name", "own"), data.get("train_length", 100), data.get("marked", "end")
        if not isinstance(cap, int) or cap < 4:
            raise UserError(f"train_length = {cap!r}: a whole number, at least 4")
        for size, value in sizes.items():
            if not isinstance(value, int):
                raise UserError(f"{size} = {value!r}: must be a whole number")
        tokens = from_data(data).tokens[:-2]
        if marked not in (*tokens, "end"):
            raise unknown("marked token", str(marked), (*tokens, "end"))
        definition = json.dumps({key: data[key] for key in ("start", "states") if key in data})
        return cls(name, definition, cap, marked, **sizes)

    def as_data(self) -> dict[str, Any]:
        """What `from_data` takes."""
        named = {"name": self.language, "train_length": self.training_cap, "marked": self.marked_token}
        sizes = {"sequences": self.sequences, "selection_sequences": self.selection_sequences}
        return named | sizes | json.loads(self.definition)

    @property
    def name(self) -> str:
        return self.language

    @property
    def cap(self) -> int:
        return self.training_cap

    @property
    def automaton(self) -> Automaton:
        return self._automaton

    @cached_property
    def _automaton(self) -> Automaton:
        return from_data(json.loads(self.definition))

    @property
    def bin_width(self) -> int:
        return self.cap // 4

    @property
    def longest(self) -> int:
        return 8 * self.bin_width

    @property
    def marked(self) -> int:
        tokens = self.automaton.tokens
        return self.automaton.eos if self.marked_token == "end" else tokens.index(self.marked_token)
