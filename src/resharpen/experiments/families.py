"""Which tasks there are, and which model goes with each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from resharpen.models import Minimal, Model, Retriever
from resharpen.tasks import MaxRetrieval, SetComplement, Task


@dataclass(frozen=True)
class Family:
    """A kind of task, the kind of model that is trained on it, and what the paper takes."""

    task: type[Any]
    model: type[Any]
    usual_model: Callable[[Any], Model]
    """The sizes for a task."""
    batch: int
    train_lengths: tuple[int, ...] = ()
    """None: they have to be given."""


FAMILIES = {
    SetComplement.kind: Family(SetComplement, Minimal, lambda task: Minimal.smallest(task.v), batch=256),
    MaxRetrieval.kind: Family(
        MaxRetrieval, Retriever, lambda task: Retriever(classes=task.classes), batch=128, train_lengths=(16,)
    ),
}


def usual_model(task: Task) -> Model:
    return FAMILIES[task.kind].usual_model(task)
