"""Which tasks there are, and which model goes with each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from resharpen.models import Minimal, Model
from resharpen.tasks import SetComplement, Task


@dataclass(frozen=True)
class Family:
    """A kind of task, the kind of model that is trained on it, and the training lengths of the paper."""

    task: type[Any]
    model: type[Any]
    usual_model: Callable[[Any], Model]
    """The sizes that the paper takes for a task."""
    train_lengths: tuple[int, ...] = ()


FAMILIES = {
    SetComplement.kind: Family(SetComplement, Minimal, lambda task: Minimal.smallest(task.v)),
}


def usual_model(task: Task) -> Model:
    return FAMILIES[task.kind].usual_model(task)
