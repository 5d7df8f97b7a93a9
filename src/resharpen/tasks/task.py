"""What a task is: minibatches to train on, fixed sets to score on, and what the scores mean."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from numpy.typing import NDArray

from resharpen import streams
from resharpen.metrics import ByLength


class Task(Protocol):
    """A frozen dataclass; its fields are the columns that tell tasks apart in the tables of a run."""

    kind: ClassVar[str]
    metric: ClassVar[str]
    """The metric that checkpoints are chosen by, averaged over lengths."""
    lower_is_better: ClassVar[bool]

    @property
    def name(self) -> str: ...

    @property
    def vocabulary(self) -> int: ...

    def check_train_length(self, train_length: int) -> None:
        """ValueError for a training length that makes no sense."""
        ...

    def batch(self, key: streams.Key, group: int, step: int, n: int, train_length: int) -> tuple[NDArray, ...]:
        """A minibatch, as the loss of the task's models takes it."""
        ...

    def validation(self, seed: int, use: str) -> Any:
        """The `selection` set, used at checkpoints, or the `report` set, used once on the weights that were kept."""
        ...

    def examples(self, validation: Any) -> tuple[NDArray, ...]:
        """(A piece of) a validation set, as the scores of the task's models take it."""
        ...

    def by_length(self, values: Any, validation: Any) -> dict[str, ByLength]:
        """What an engine's `evaluate` gave, reduced: metric -> values by length."""
        ...
