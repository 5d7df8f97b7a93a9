"""Base classes of tasks: training minibatches, validation sets, and scores.

Your own task on tokens defines how to sample a sequence and its next-token distribution; `TokenTask` does the rest.

Shapes: M models, N sequences, L positions, V tokens, P scored places.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from resharpen import streams
from resharpen.errors import UserError
from resharpen.lazy import Tensor
from resharpen.metrics import ByLength, exact_by_length, mean_by_length
from resharpen.plain import build
from resharpen.tasks import options
from resharpen.tasks.metrics import METRICS, OF_SEQUENCES, TVD, Metric, PlaceMetric
from resharpen.tasks.validation import ValidationSet

Tokens = NDArray[np.int64]
Measured = Mapping[str, NDArray[np.floating]]
"""Name of a measure -> its value at every scored place, [M, P]."""

ROUNDING = 1e-5
"""Tolerance of the sum of probabilities: single precision is sufficient."""

NOTHING = -1
"""Padding after the end of a sequence."""


class Batch(NamedTuple):
    """A minibatch: inputs, targets, and a mask of the places that enter the loss."""

    inputs: Any
    targets: Tokens
    mask: NDArray[np.bool_]
    """In the shape of the targets; false at padding."""


class Examples(NamedTuple):
    """(A piece of) a validation set: inputs, the places whose logits are scored, and the exact answers there."""

    inputs: Any
    scored: NDArray[np.bool_]
    truth: Mapping[str, NDArray]
    """Arrays that `Task.score` compares the logits with, by name, [P, ...] each."""


class Task:
    """A frozen dataclass of numbers and strings; its fields are columns of the tables."""

    kind: ClassVar[str]
    asked: ClassVar[str] = ""
    """What to predict, in one line."""
    answer: ClassVar[str] = ""
    """The exact next-token distribution in words."""
    published: ClassVar[str] = ""
    """Source, and published results."""
    usual_fields: ClassVar[Mapping[str, Any]] = {}
    """Default values for `from_data` of fields that have no default."""
    usual_tests: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Further test distributions of `resharpen run TASK`: name -> the fields that differ."""
    reads: ClassVar[Literal["tokens", "items"]] = "tokens"
    sets: ClassVar[bool] = False
    """Whether the tokens of a sequence are distinct: for a model without positions a prefix is then a set and its last
    token."""
    metric: ClassVar[str] = "tvd"
    """The metric that selects checkpoints, averaged over lengths."""
    shown_metric: ClassVar[str] = "tvd"
    """The metric of the figure."""
    measures: ClassVar[tuple[str, ...]] = ("tvd",)
    """Names of the values that `score` returns."""
    own_metrics: ClassVar[tuple[str | PlaceMetric, ...]] = ()
    """Metrics that were asked for, built in or the user's; set by `with_options`."""
    report_sequences: ClassVar[int | None] = None
    """Sequences in the report set if the task has no field for it; set by `with_options`."""
    tests: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Further test distributions: name -> the fields that differ; set by `with_options`."""
    unit: ClassVar[str] = "tokens"
    scored: ClassVar[str] = "prefixes"
    """The unit of the column `count` of a run's tables."""
    usual_model: ClassVar[str] = "transformer"
    usual_batch: ClassVar[int] = 64
    knows_training: ClassVar[bool] = False
    """Whether validation depends on the training length: then `from_data` gets the longest one as `train_length`."""
    shown_by: ClassVar[Literal["length", "train_length"]] = "length"
    """The x axis of the figure: the length of inputs, or the training length, with scores over all lengths."""

    @property
    def name(self) -> str:
        """Key of the random streams: everything that changes sequences, and nothing else. By default all fields."""
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
        """The default training length; None if a spec must give one."""
        return None

    @property
    def metrics(self) -> dict[str, Metric]:
        """All metrics that a run reports; the first is shown in the figure."""
        return self._shown_first({"tvd": TVD, **self.further_metrics()})

    def _shown_first(self, every: dict[str, Metric]) -> dict[str, Metric]:
        return {self.shown_metric: every[self.shown_metric], **every}

    @property
    def not_resampled(self) -> tuple[str, ...]:
        """Metrics that are too slow to compute without each block of sequences."""
        return ()

    @property
    def further(self) -> Mapping[str, PlaceMetric]:
        """Functions of p and p* that are measured on the selected checkpoints, besides `score`."""
        return {**METRICS, **options.own_metrics(self)}

    def least_legal(self) -> float:
        """The least probability of a legal token at the scored places of the selection set."""
        return _least_legal(self)

    def further_metrics(self) -> dict[str, Metric]:
        about = {name: metric.about for name, metric in self.further.items()}
        return about | {name: metric for name, (of, metric) in OF_SEQUENCES.items() if of in about}

    def of_sequences(self, defined: Iterable[str]) -> dict[str, str]:
        """Metric of sequences -> the metric of places that it follows from, for those of the task among `defined`."""
        return {name: of for name, (of, _) in OF_SEQUENCES.items() if of in defined and name in self.metrics}

    def with_options(
        self,
        metrics: Sequence[str | PlaceMetric] = (),
        sequences: int | None = None,
        tests: options.Tests | None = None,
    ) -> Self:
        """The same task with further metrics, built in or the user's as FILE.py:NAME, another number of sequences in
        the report set, and further test distributions: name -> the fields that differ, or the whole task. None of them
        changes training or the choice of checkpoints."""
        return options.with_options(self, metrics, sequences, tests)

    def tested(self, test: str) -> Self:
        """The task of a further test distribution."""
        return options.tested(self, test)

    @property
    def reported_lengths(self) -> Sequence[int] | None:
        """The lengths at which metrics are reported, if known without sampling; otherwise None."""
        return None

    @property
    def longest_input(self) -> int | None:
        """Tokens of the longest input, trained on or scored, if known without sampling; otherwise None."""
        return None

    def input_tokens(self, length: int) -> int:
        """The number of input tokens of the longest sequence of a length; by default the length itself."""
        return length

    @property
    def lower_is_better(self) -> bool:
        return self.metrics[self.metric].lower_is_better

    @property
    def token_names(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.vocabulary)))

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """From the [task] table of a TOML file, without kind, train_lengths and model."""
        return build(cls, data, "[task]")

    def as_data(self) -> dict[str, Any]:
        """The argument of `from_data` that gives this task."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # pyright: ignore[reportArgumentType]

    def check_train_length(self, train_length: int) -> None:
        """ValueError for an invalid training length."""
        if train_length < 1:
            raise ValueError(f"training length {train_length}: at least 1")

    def marks(self, train_length: int) -> dict[str, int]:
        """Description -> length to mark in figures."""
        return {}

    def batch(self, key: streams.Key, group: int, step: int, n: int, train_length: int) -> Batch:
        """Minibatch `step` of a group of draws, n sequences: a pure function of its arguments."""
        raise NotImplementedError

    def validation(self, seed: int, use: str) -> Any:
        """The `selection` set, used at checkpoints, or the `report` set, used once on the selected checkpoints."""
        raise NotImplementedError

    def examples(self, validation: Any) -> Examples:
        raise NotImplementedError

    def score(self, logits_MxPxV: Tensor, truth: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Scores of the logits at the scored places, [M, P] each."""
        return {"tvd": 0.5 * (logits_MxPxV.softmax(-1) - truth["p_star"]).abs().sum(-1)}

    def further_scores(self, logits_MxPxV: Tensor, truth: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The metrics of `further`, [M, P] each; empty if there is no p*."""
        if "p_star" not in truth or not self.further:
            return {}
        p_MxPxV = logits_MxPxV.softmax(-1)
        return {name: metric(p_MxPxV, truth["p_star"]) for name, metric in self.further.items()}

    def by_length(self, measured: Measured, validation: Any) -> dict[str, ByLength]:
        """Values at scored places, reduced: metric -> values by length."""
        defined = defined_places(self, validation, measured)
        length_P = validation.length_P
        found = {name: mean_by_length(x_MxP, length_P, defined.get(name)) for name, x_MxP in measured.items()}
        for name, of in self.of_sequences(defined).items():
            row_P = np.nonzero(validation.scored_NxL)[0]
            found[name] = exact_by_length(measured[of], row_P, length_P, defined[of])
        return found


class SequenceTask(Task):
    """A task on tokens, scored at lengths up to `longest`."""

    @property
    def longest(self) -> int:
        """By default three times the usual training length."""
        if self.usual_train_length is None:
            raise NotImplementedError
        return 3 * self.usual_train_length

    @property
    def longest_input(self) -> int:
        return self.input_tokens(self.longest)

    def check_train_length(self, train_length: int) -> None:
        if not 1 <= train_length <= self.longest:
            raise ValueError(f"training length {train_length}: for {self.name} 1..{self.longest}")

    def sample_batch(self, n: int, length: int | None = None, seed: int = 0) -> Batch:
        """n sequences of a training length, by default the usual one, with their targets, as models are trained on
        them: to look at, or to train something else. Runs draw from other streams.

        >>> from resharpen.tasks import SetComplement
        >>> inputs, targets, mask = SetComplement(9).sample_batch(2, 3)
        >>> inputs.shape, bool((inputs[:, 1:] == targets[:, :-1]).all()), mask.all()
        ((2, 3), True, np.True_)
        """
        length = self.usual_train_length if length is None else length
        if length is None:
            raise UserError(f"task '{self.name}' has no usual training length: name one")
        self.check_train_length(length)
        return self.batch(streams.key(seed, self.name, "sample"), 0, 0, n, length)


class TokenTask(SequenceTask):
    """A task on tokens whose next-token distribution is known:

        sample(words_NxT)      T tokens per sequence from T random words, uniform on 0 .. 2^32 - 1: tokens [N, T]
        p_star(inputs_NxL)     the exact distribution of what follows every prefix, [N, L, V]

    Neither may depend on other sequences: those of several steps may be sampled in one call. A sequence begins with the
    token `opening`, if there is one. Models are scored at all lengths up to `longest`. Training and scoring may be
    restricted to some places:

        trained_places(inputs_NxL), scored_places(inputs_NxL)      true where, [N, L]
        place_lengths(inputs_NxL)                                  the length that a place is reported at, [N, L]

    If sequences differ in length (`varied`), `sample` returns NOTHING after the last token of a sequence.
    """

    varied: ClassVar[bool] = False
    bin_width: ClassVar[int] = 1
    """Width of the bins of lengths, which are named by their ends."""
    sequences: ClassVar[int] = 64
    """Sequences in a validation set."""

    @property
    def opening(self) -> int | None:
        return None

    def sample(self, words_NxT: NDArray[np.uint32], /) -> Tokens:
        raise NotImplementedError

    def p_star(self, inputs_NxL: Tokens, /) -> NDArray[np.float64]:
        raise NotImplementedError

    @property
    def metrics(self) -> dict[str, Metric]:
        return {
            name: replace(x, bin=self.bin_width if self.bin_width > 1 else x.bin) for name, x in super().metrics.items()
        }

    def trained_places(self, inputs_NxL: Tokens, /) -> NDArray[np.bool_]:
        """Places that enter the loss: by default all."""
        return np.ones(inputs_NxL.shape, bool)

    def scored_places(self, inputs_NxL: Tokens, /) -> NDArray[np.bool_]:
        """Places at which models are scored: by default all."""
        return np.ones(inputs_NxL.shape, bool)

    def place_lengths(self, inputs_NxL: Tokens, /) -> Tokens:
        """The length of a place: by default its number of input tokens, up to the end of its bin; of an answer, the
        items of its question."""
        ends_L = (np.arange(inputs_NxL.shape[1]) // self.bin_width + 1) * self.bin_width
        return np.broadcast_to(ends_L, inputs_NxL.shape)

    def batch(self, key: streams.Key, group: int, step: int | NDArray[np.integer], n: int, train_length: int) -> Batch:
        """Minibatch `step`, or those of several steps one after another."""
        return self._batch(self._drawn(key, n, self.input_tokens(train_length) + 1, group, step), "trained_places")

    def _batch(self, tokens: Tokens, which: str) -> Batch:
        """Inputs, targets, and a mask of places where both are tokens and the method `which` is true."""
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        if not self.varied:
            return Batch(inputs, targets, self._mask(which, inputs))
        return Batch(inputs.clip(0), targets.clip(0), self._mask(which, inputs.clip(0), targets != NOTHING))

    def validation(self, seed: int, use: str) -> ValidationSet:
        many = self.report_sequences if use == "report" and self.report_sequences else self.sequences
        key, length = streams.key(seed, self.name, "validation", use), self.input_tokens(self.longest)
        if self.varied:
            inputs, _, scored = self._batch(self._drawn(key, many, length + 1), "scored_places")
        else:
            inputs = self._drawn(key, many, length)
            scored = self._mask("scored_places", inputs)
        return ValidationSet(inputs, scored, self._lengths(inputs))

    def examples(self, validation: ValidationSet) -> Examples:
        inputs, scored = validation.inputs_NxL, validation.scored_NxL
        p_NxLxV, shape = np.asarray(self.p_star(inputs)), (*inputs.shape, self.vocabulary)
        if p_NxLxV.shape != shape:
            raise self._wrong(
                f"p_star has the shape {list(p_NxLxV.shape)}, not {list(shape)}: sequences, places, tokens"
            )
        p_PxV = p_NxLxV[scored]
        if p_PxV.dtype.kind not in "fiub" or not (np.isfinite(p_PxV).all() and (p_PxV >= 0).all()):
            raise self._wrong("p_star has values that are not probabilities: all must be finite numbers, at least 0")
        if (off_P := np.abs(p_PxV.sum(-1) - 1) > ROUNDING).any():
            raise self._wrong(f"p_star sums to {p_PxV[off_P][0].sum():g} over the tokens: it must sum to 1 everywhere")
        return Examples(inputs, scored, {"p_star": p_PxV.astype(np.float64, copy=False)})

    def _drawn(
        self, key: streams.Key, n: int, length: int, group: int = 0, step: int | NDArray[np.integer] = 0
    ) -> Tokens:
        """n sequences of `length` tokens, including the opening one, [N, length]; n for each of several steps."""
        drawn = length - (self.opening is not None)
        words = streams.words(key, n * drawn, group, step).reshape(n * np.size(step), drawn)
        sampled = np.asarray(self.sample(words))
        if sampled.shape != words.shape or sampled.dtype.kind not in "iu":
            given, wanted = f"{list(sampled.shape)} of {sampled.dtype}", f"{list(words.shape)} of whole numbers"
            raise self._wrong(f"sample returns {given}, not {wanted}: sequences, tokens")
        opening = [] if self.opening is None else [np.full((len(words), 1), self.opening)]
        tokens = np.concatenate([*opening, sampled], axis=1).astype(np.int64, copy=False)
        least = NOTHING if self.varied else 0
        if tokens.size and not (tokens.min() >= least and tokens.max() < self.vocabulary):
            given, allowed = f"{tokens.min()}..{tokens.max()}", f"0..{self.vocabulary - 1}"
            raise self._wrong(f"its tokens are {given}, the vocabulary has {allowed}")
        return tokens

    def _mask(self, which: str, inputs_NxL: Tokens, real_NxL: NDArray[np.bool_] | None = None) -> NDArray[np.bool_]:
        mask = np.asarray(getattr(self, which)(inputs_NxL))
        if mask.shape != inputs_NxL.shape or mask.dtype != bool:
            given = f"{list(mask.shape)} of {mask.dtype}"
            raise self._wrong(f"{which} returns {given}, not {list(inputs_NxL.shape)} of bool: sequences, places")
        mask = mask if real_NxL is None else mask & real_NxL
        if not mask.any():  # the mean over no place is undefined
            raise self._wrong(f"{which} is false everywhere in {len(mask)} sequences of {mask.shape[1]} tokens")
        return mask

    def _lengths(self, inputs_NxL: Tokens) -> Tokens:
        found = np.asarray(self.place_lengths(inputs_NxL))
        if found.shape != inputs_NxL.shape or found.dtype.kind not in "iu" or found.min(initial=1) < 1:
            given = f"{list(found.shape)} of {found.dtype}"
            raise self._wrong(f"place_lengths returns {given}, not {list(inputs_NxL.shape)} of whole numbers from 1 on")
        return found

    def _wrong(self, what: str) -> UserError:
        return UserError(f"task '{self.name}': {what}")


@lru_cache(maxsize=8)
def _least_legal(task: Task) -> float:
    p_star_PxV = task.examples(task.validation(0, "selection")).truth["p_star"]
    return float(p_star_PxV[p_star_PxV > 0].min())


def defined_places(task: Task, validation: Any, names: Iterable[str]) -> dict[str, NDArray[np.bool_]]:
    """For the metrics of `further` among `names`: the places where they are defined, [P], which are those where the
    exact distribution has a value. This does not depend on the models, so counts are the same for all of them."""
    asked = tuple(name for name in names if name in task.further and name not in ("kl", "illegal"))
    return _defined(task, task.own_metrics, validation, asked) if asked else {}


@lru_cache(maxsize=32)  # a report set and its blocks, for two tasks
def _defined(
    task: Task, _own: tuple[Any, ...], validation: Any, names: tuple[str, ...]
) -> dict[str, NDArray[np.bool_]]:
    import torch

    found: dict[str, list[NDArray[np.bool_]]] = {name: [] for name in names}
    for piece in validation.pieces(2**21 // task.vocabulary):
        p_star_PxV = torch.as_tensor(task.examples(piece).truth["p_star"])
        for name in names:
            found[name].append(~task.further[name](p_star_PxV[None], p_star_PxV)[0].isnan().numpy())
    return {name: np.concatenate(pieces) for name, pieces in found.items()}
