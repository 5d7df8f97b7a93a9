"""Which tasks there are, and which model goes with each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from resharpen.models import Minimal, Model, Retriever, Transformer
from resharpen.tasks import Dyck, MaxRetrieval, OwnLanguage, SetComplement, Task, Tomita


@dataclass(frozen=True)
class Family:
    """A kind of task, the kind of model that is trained on it, and what the paper takes."""

    task: type[Any]
    model: type[Any]
    usual_model: Callable[[Any], Model]
    """The sizes for a task."""
    batch: int
    train_length: Callable[[Any], int] | None = None
    """None: it has to be given."""


def _language(task: type[Any]) -> Family:
    return Family(task, Transformer, lambda task: Transformer(task.vocabulary), 64, lambda task: task.cap)


FAMILIES = {
    SetComplement.kind: Family(SetComplement, Minimal, lambda task: Minimal.smallest(task.v), 256),
    MaxRetrieval.kind: Family(MaxRetrieval, Retriever, lambda task: Retriever(classes=task.classes), 128, lambda _: 16),
    **{task.kind: _language(task) for task in (Dyck, Tomita, OwnLanguage)},
}


def usual_model(task: Task) -> Model:
    return FAMILIES[task.kind].usual_model(task)
