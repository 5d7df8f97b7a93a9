"""What a task is: minibatches to train on, fixed sets to score on, and what the scores mean.

A task of your own on tokens needs two things, how a sequence is drawn and what comes next; `TokenTask` does the rest.

Shapes: M models, N sequences, L positions, V tokens, P scored places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from resharpen import streams
from resharpen.errors import UserError
from resharpen.metrics import ByLength, mean_by_length
from resharpen.plain import build
from resharpen.tasks.validation import ValidationSet

if TYPE_CHECKING:
    from torch import Tensor

Tokens = NDArray[np.int64]
Measured = Mapping[str, NDArray[np.floating]]
"""Name of a measure -> its value at every scored place, [M, P]."""

ROUNDING = 1e-5
"""What the probabilities of all tokens may sum to besides 1: single precision will do."""


class Batch(NamedTuple):
    """A minibatch: what models read, what they are to predict, and where that counts."""

    inputs: Any
    targets: Tokens
    mask: NDArray[np.bool_]
    """Of the shape of the targets; padding does not count."""


class Examples(NamedTuple):
    """(A piece of) a validation set: what models read, which of their logits are scored, and what is true there."""

    inputs: Any
    scored: NDArray[np.bool_]
    truth: Mapping[str, NDArray]
    """What `Task.score` compares the logits with, by name, [P, ...] each."""


@dataclass(frozen=True)
class Metric:
    """What a figure or a table has to know of a metric."""

    label: str
    lower_is_better: bool = False
    worst: float = 0.0
    """What a model has that has no value."""
    guess: float | None = None
    """What a guess would reach."""
    bin: int | None = None
    """Lengths are the ends of bins so wide; None for single lengths."""
    best: float | None = None
    """The best possible value, infinite if there is none; None: 0 where lower is better, otherwise 1."""
    range: tuple[float, float] | None = None
    """Between which all values lie, which is checked when results are written and read; None: not known."""

    @property
    def bound(self) -> float:
        """The best possible value."""
        return self.best if self.best is not None else 0.0 if self.lower_is_better else 1.0

    @property
    def best_quantile(self) -> float:
        """The quantile over models that counts as best results."""
        return 0.1 if self.lower_is_better else 0.9


class Task:
    """A frozen dataclass of numbers and texts; its fields are the columns that tell tasks apart in the tables."""

    kind: ClassVar[str]
    reads: ClassVar[Literal["tokens", "items"]] = "tokens"
    sets: ClassVar[bool] = False
    """Whether the tokens of a sequence are distinct: to a model without order a prefix is then a set and its last."""
    metric: ClassVar[str] = "tvd"
    """The metric that checkpoints are chosen by, averaged over lengths."""
    measures: ClassVar[tuple[str, ...]] = ("tvd",)
    """What `score` gives."""
    unit: ClassVar[str] = "tokens"
    scored: ClassVar[str] = "prefixes"
    """What is counted in the column `count` of a run's tables."""
    usual_model: ClassVar[str] = "transformer"
    usual_batch: ClassVar[int] = 64
    shown_by: ClassVar[Literal["length", "train_length"]] = "length"
    """What the axis of the figure is: the length of inputs, or that of training, the score being over all lengths."""

    @property
    def name(self) -> str:
        """What the random streams go by: whatever makes other sequences, and nothing else. Here all fields."""
        fields_ = (f"-{field.name}{getattr(self, field.name)}" for field in fields(self))  # pyright: ignore[reportArgumentType]
        return type(self).__name__.lower() + "".join(fields_)

    @property
    def title(self) -> str:
        return self.name

    @property
    def vocabulary(self) -> int:
        """The number of tokens, or of possible answers."""
        raise NotImplementedError

    @property
    def usual_train_length(self) -> int | None:
        """Where a spec gives none; None if it has to."""
        return None

    @property
    def metrics(self) -> dict[str, Metric]:
        """All that a run reports; the first is that of the figure."""
        return {"tvd": Metric("TVD", lower_is_better=True, worst=1.0, range=(0.0, 1.0))}

    @property
    def reported_lengths(self) -> Sequence[int] | None:
        """At which every metric is reported, where that is known before anything is drawn."""
        return None

    @property
    def lower_is_better(self) -> bool:
        return self.metrics[self.metric].lower_is_better

    @property
    def token_names(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.vocabulary)))

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """From the [task] table of a TOML file, kind, train_lengths and model apart."""
        return build(cls, data, "[task]")

    def as_data(self) -> dict[str, Any]:
        """What `from_data` takes."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # pyright: ignore[reportArgumentType]

    def check_train_length(self, train_length: int) -> None:
        """ValueError for a training length that makes no sense."""
        if train_length < 1:
            raise ValueError(f"training length {train_length}: at least 1")

    def marks(self, train_length: int) -> dict[str, int]:
        """Lengths to mark in figures, by what they are."""
        return {}

    def batch(self, key: streams.Key, group: int, step: int, n: int, train_length: int) -> Batch:
        """Minibatch `step` of a group of draws, n sequences: a pure function of its arguments."""
        raise NotImplementedError

    def validation(self, seed: int, use: str) -> Any:
        """The `selection` set, used at checkpoints, or the `report` set, used once on the weights that were kept."""
        raise NotImplementedError

    def examples(self, validation: Any) -> Examples:
        raise NotImplementedError

    def score(self, logits_MxPxV: Tensor, truth: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Logits at the scored places against the truth, [M, P] each."""
        return {"tvd": 0.5 * (logits_MxPxV.softmax(-1) - truth["p_star"]).abs().sum(-1)}

    def by_length(self, measured: Measured, validation: Any) -> dict[str, ByLength]:
        """What was measured at every scored place, reduced: metric -> values by length."""
        return {name: mean_by_length(values_MxP, validation.length_P) for name, values_MxP in measured.items()}


class TokenTask(Task):
    """A task on tokens whose sequences have one length, and whose next-token distribution is known:

        sample(words_NxT)      T tokens per sequence from T random words, uniform on 0 .. 2^32 - 1: tokens [N, T]
        p_star(inputs_NxL)     the exact distribution of what follows every prefix, [N, L, V]

    A sequence is opened with `opening`, a token of its own, if there is one. Scored at all lengths up to `longest`.
    """

    opening: ClassVar[int | None] = None
    sequences: ClassVar[int] = 64
    """In a validation set."""

    @property
    def longest(self) -> int:
        raise NotImplementedError

    def sample(self, words_NxT: NDArray[np.uint32], /) -> Tokens:
        raise NotImplementedError

    def p_star(self, inputs_NxL: Tokens, /) -> NDArray[np.float64]:
        raise NotImplementedError

    def check_train_length(self, train_length: int) -> None:
        if not 1 <= train_length <= self.longest:
            raise ValueError(f"training length {train_length}: for {self.name} 1..{self.longest}")

    def batch(self, key: streams.Key, group: int, step: int, n: int, train_length: int) -> Batch:
        tokens = self._drawn(key, n, train_length + 1, group, step)
        return Batch(tokens[:, :-1], tokens[:, 1:], np.ones((n, train_length), bool))

    def validation(self, seed: int, use: str) -> ValidationSet:
        inputs = self._drawn(streams.key(seed, self.name, "validation", use), self.sequences, self.longest)
        return ValidationSet(inputs, np.ones(inputs.shape, bool))

    def examples(self, validation: ValidationSet) -> Examples:
        inputs, scored = validation.inputs_NxL, validation.scored_NxL
        p_NxLxV, shape = np.asarray(self.p_star(inputs)), (*inputs.shape, self.vocabulary)
        if p_NxLxV.shape != shape:
            raise self._wrong(
                f"p_star has the shape {list(p_NxLxV.shape)}, not {list(shape)}: sequences, places, tokens"
            )
        p_PxV = p_NxLxV[scored]
        if p_PxV.dtype.kind not in "fiub" or not (np.isfinite(p_PxV).all() and (p_PxV >= 0).all()):
            raise self._wrong("p_star has values that are no probabilities: all must be finite numbers, at least 0")
        if (off_P := np.abs(p_PxV.sum(-1) - 1) > ROUNDING).any():
            raise self._wrong(f"p_star sums to {p_PxV[off_P][0].sum():g} over the tokens: it must sum to 1 everywhere")
        return Examples(inputs, scored, {"p_star": p_PxV.astype(np.float64, copy=False)})

    def _drawn(self, key: streams.Key, n: int, length: int, group: int = 0, step: int = 0) -> Tokens:
        """n sequences of so many tokens, the opening one included, [N, length]."""
        drawn = length - (self.opening is not None)
        words = streams.words(key, n * drawn, group, step).reshape(n, drawn)
        sampled = np.asarray(self.sample(words))
        if sampled.shape != words.shape or sampled.dtype.kind not in "iu":
            given, wanted = f"{list(sampled.shape)} of {sampled.dtype}", f"{list(words.shape)} of whole numbers"
            raise self._wrong(f"sample gives {given}, not {wanted}: sequences, tokens")
        opening = [] if self.opening is None else [np.full((n, 1), self.opening)]
        tokens = np.concatenate([*opening, sampled], axis=1).astype(np.int64, copy=False)
        if tokens.size and not (tokens.min() >= 0 and tokens.max() < self.vocabulary):
            given, allowed = f"{tokens.min()}..{tokens.max()}", f"0..{self.vocabulary - 1}"
            raise self._wrong(f"its tokens are {given}, the vocabulary has {allowed}")
        return tokens

    def _wrong(self, what: str) -> UserError:
        return UserError(f"task '{self.name}': {what}")
