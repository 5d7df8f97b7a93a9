"""Maximum Retrieval: return the class of the item with the highest priority.

Of three items with priorities 0.25, 0.75, 0.5 and classes 7, 2, 9 the second is the highest, so the answer is 2.

    >>> MaxRetrieval().labels(np.array([[0.25, 0.75, 0.5]]), np.array([[7, 2, 9]]), np.array([3])).tolist()
    [2]

Priorities are multiples of 2^-24, uniform on [0, 1) and exact in float32; on ties the earliest item wins.

Shapes: N sequences, L positions (a sequence shorter than L is padded with zeros), P scored sequences.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resharpen import streams
from resharpen.lazy import Tensor
from resharpen.tasks.metrics import PlaceMetric
from resharpen.tasks.task import Batch, Examples, Metric, Task

Floats, Integers = NDArray[np.float32], NDArray[np.int64]


class Items(NamedTuple):
    """Sets of items: priorities [N, L], classes [N, L] and numbers of items [N]."""

    priority: Floats
    kind: Integers
    length: Integers


SHORTEST = 5
"""The shortest training sequence."""
SHORTEST_VALIDATED, LEAST_SEQUENCES = 16, 16
SELECTION_LONGEST = 1024
"""The selection set is small: it is used at every checkpoint."""


@dataclass(frozen=True)
class RetrievalSet:
    """A fixed set of sequences to score models on, generated on access: an entry (length, begin, end) of `ranges` means
    sequences begin .. end-1 of that length. Each sequence is a stream of its own."""

    sampled: ClassVar[bool] = True

    key: streams.Key
    ranges: tuple[tuple[int, int, int], ...]

    @property
    def length_P(self) -> Integers:
        """The number of items of each sequence."""
        return np.concatenate([np.full(end - begin, length, np.int64) for length, begin, end in self.ranges])

    @property
    def sequences(self) -> int:
        """The smallest number of sequences at a length."""
        return min(end - begin for _, begin, end in self.ranges)

    def blocks_P(self, blocks: int) -> Integers:
        """The block of each sequence: the sequences of a length are divided into `blocks` blocks."""
        return np.concatenate([np.arange(end - begin) * blocks // (end - begin) for _, begin, end in self.ranges])

    def pieces(self, positions: int) -> Iterator[RetrievalSet]:
        """The same sequences in order, in sets of one length and about this many positions, to bound memory."""
        for length, begin, end in self.ranges:
            rows = max(1, positions // length)
            for start in range(begin, end, rows):
                yield RetrievalSet(self.key, ((length, start, min(start + rows, end)),))


@dataclass(frozen=True)
class MaxRetrieval(Task):
    classes: int = 10
    longest: int = 4096
    """The longest sequence of the report set; they start at 16 and double."""
    items: int = 65_536
    """Items per length in the report set; an equal number of items costs the same at every length."""
    selection_items: int = 8_192

    kind: ClassVar[str] = "max-retrieval"
    asked: ClassVar[str] = "the class of the item with the highest priority"
    answer: ClassVar[str] = "one class"
    published: ClassVar[str] = "Velickovic et al. 2025: softmax disperses on longer inputs; the paper"
    reads: ClassVar[Literal["tokens", "items"]] = "items"
    metric: ClassVar[str] = "accuracy"
    shown_metric: ClassVar[str] = "accuracy"
    measures: ClassVar[tuple[str, ...]] = ("accuracy",)
    unit: ClassVar[str] = "items"
    scored: ClassVar[str] = "sets"
    usual_model: ClassVar[str] = "retriever"
    usual_batch: ClassVar[int] = 128

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise ValueError(f"classes = {self.classes}: must be at least 2")
        for name, least in (("longest", SHORTEST_VALIDATED), ("items", 1), ("selection_items", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} = {getattr(self, name)}: at least {least}")

    @property
    def name(self) -> str:
        return "max" if self.classes == 10 else f"max-c{self.classes}"

    @property
    def title(self) -> str:
        return "Maximum Retrieval"

    @property
    def usual_train_length(self) -> int:
        return 16

    @property
    def further(self) -> Mapping[str, PlaceMetric]:
        """None, because its target is an answer, not a distribution."""
        return {}

    @property
    def metrics(self) -> dict[str, Metric]:
        return {
            "accuracy": Metric("accuracy", guess=1 / self.classes, range=(0.0, 1.0)),
            "entropy": Metric(
                "attention entropy (nats)", lower_is_better=True, worst=float("inf"), range=(0.0, float("inf"))
            ),
            "largest_weight": Metric("largest attention weight", range=(0.0, 1.0)),
        }

    @property
    def reported_lengths(self) -> list[int]:
        return [2**i for i in range(SHORTEST_VALIDATED.bit_length() - 1, self.longest.bit_length())]

    @property
    def vocabulary(self) -> int:
        return self.classes

    def check_train_length(self, train_length: int) -> None:
        if train_length < SHORTEST:
            raise ValueError(f"s = {train_length}: training sequences have {SHORTEST} to s items")

    def sample(self, words_NxLx2: NDArray[np.uint32]) -> tuple[Floats, Integers]:
        """Two words per item: the top 24 bits of the first are its priority, the second picks its class."""
        priority_NxL = (words_NxLx2[..., 0] >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)
        return priority_NxL, streams.below(words_NxLx2[..., 1], self.classes)

    def labels(self, priority_NxL: NDArray[np.floating], class_NxL: Integers, length_N: Integers) -> Integers:
        """The class of the highest priority among the first `length` items, the earliest on ties."""
        real_NxL = np.arange(priority_NxL.shape[1]) < length_N[:, None]
        highest_N = np.where(real_NxL, priority_NxL, -np.inf).argmax(axis=1)
        return np.take_along_axis(class_NxL, highest_N[:, None], axis=1)[:, 0]

    def batch(self, key: streams.Key, group: int, step: int, n: int, train_length: int) -> Batch:
        """n sequences with lengths uniform on 5..s, s being the training length.

        A sequence takes 1 + 2 s words: one for its length, then two per item, including the items that are cut.
        """
        s = train_length
        words = streams.words(key, n * (1 + 2 * s), group, step).reshape(n, 1 + 2 * s)
        length_N = SHORTEST + streams.below(words[:, 0], s - SHORTEST + 1)
        priority_NxL, class_NxL = self.sample(words[:, 1:].reshape(n, s, 2))
        padding_NxL = np.arange(s) >= length_N[:, None]
        priority_NxL[padding_NxL], class_NxL[padding_NxL] = 0, 0
        label_N = self.labels(priority_NxL, class_NxL, length_N)
        return Batch(Items(priority_NxL, class_NxL, length_N), label_N, np.ones(n, bool))

    def validation(self, seed: int, use: str) -> RetrievalSet:
        """The `selection` or `report` set: lengths 16, 32, .., equally many items of each, in at least 16 sequences."""
        items, longest = (self.items, self.longest) if use == "report" else (self.selection_items, SELECTION_LONGEST)
        lengths = [n for n in self.reported_lengths if n <= longest]
        key = streams.key(seed, self.name, "validation", use)
        return RetrievalSet(key, tuple((n, 0, max(LEAST_SEQUENCES, items // n)) for n in lengths))

    def examples(self, validation: RetrievalSet) -> Examples:
        """The sequences of a set or of one of its pieces, padded to the longest."""
        longest = max(length for length, _, _ in validation.ranges)
        drawn = []
        for length, begin, end in validation.ranges:  # a sequence is the stream (length, its number)
            words = streams.words(validation.key, 2 * length, length, np.arange(begin, end))
            drawn.append(self.sample(words.reshape(end - begin, length, 2)))
        priority_NxL, class_NxL = (
            np.concatenate([np.pad(x, ((0, 0), (0, longest - x.shape[1]))) for x in arrays])
            for arrays in zip(*drawn, strict=True)
        )
        length_N = validation.length_P
        label_N = self.labels(priority_NxL, class_NxL, length_N)
        return Examples(Items(priority_NxL, class_NxL, length_N), np.ones(len(length_N), bool), {"label": label_N})

    def score(self, logits_MxPxV: Tensor, truth: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """1 where the label has the highest logit, else 0; nan where a logit is not finite."""
        right_MxP = (logits_MxPxV.argmax(-1) == truth["label"]).to(logits_MxPxV.dtype)
        return {"accuracy": right_MxP.masked_fill(~logits_MxPxV.isfinite().all(-1), float("nan"))}
