"""What a spec may add to any task: metrics of the user's own, and the number of sequences in the report set.

They are not fields of the task: they change no sequence, no model and no choice of checkpoints, so that random streams
and the columns of the tables stay as they are. A spec and the identity of a shard have them where they are given.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from resharpen import own
from resharpen.errors import UserError
from resharpen.plain import typed
from resharpen.tasks.metrics import METRICS, PlaceMetric

if TYPE_CHECKING:
    from resharpen.tasks.task import Task

T = TypeVar("T", bound="Task")
KEYS = ("metrics", "sequences")
"""In a [task] table."""


@cache
def own_metrics(references: tuple[str, ...]) -> dict[str, PlaceMetric]:
    """Name -> metric of the user's own."""
    return {own.short(name): own.find_in(METRICS, PlaceMetric, "metric", name) for name in references}


def with_options(task: T, metrics: Sequence[str] = (), sequences: int | None = None) -> T:
    if not metrics and sequences is None:
        return task
    made = copy.copy(task)
    if sequences is not None:
        if typed("sequences", sequences, int) < 2:
            raise UserError(f"sequences = {sequences}: at least 2, one to tell from another")
        if not hasattr(task, "sequences"):
            raise UserError(f"sequences: {task.name} has no such number; its report set is sized by its own fields")
        object.__setattr__(made, "report_sequences", sequences)
        if not made.validation(0, "report").sampled:
            raise UserError(f"sequences = {sequences}: the report set of {task.name} is every state, not a sample")
    known = {**task.metrics}
    for name in metrics:
        if not own.is_own(typed("metrics", name, str)):
            own.find_in(METRICS, PlaceMetric, "metric", name)  # it is reported anyway, unless there is no such thing
        elif own.short(name) in known:
            raise UserError(f"metric '{own.short(name)}' is there already in {task.name}: choose another name")
    mine = tuple(dict.fromkeys(name for name in metrics if own.is_own(name)))
    object.__setattr__(made, "own_metrics", mine)
    own_metrics(mine)  # a misspelt name says so here
    if missing := [own.short(name) for name in mine if own.short(name) not in made.metrics]:
        why = "it has no p*" if not made.further else "it lists its metrics itself: add **self.further_metrics() there"
        raise UserError(f"metric '{missing[0]}' cannot be added to {task.name}: {why}")
    return made


def split(cls: type[Task], table: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A [task] table without the options that are not fields of the task, and the options."""
    names = {field.name for field in fields(cls)}  # pyright: ignore[reportArgumentType]
    given = {key: x for key, x in table.items() if key in KEYS and key not in names}
    given = {key: typed(key, x, list, "a list of names") if key == "metrics" else x for key, x in given.items()}
    return {key: x for key, x in table.items() if key not in given}, given


def as_data(task: Task) -> dict[str, Any]:
    """The options that were given, as a [task] table has them."""
    found = {"metrics": list(task.own_metrics), "sequences": task.report_sequences}
    return {key: value for key, value in found.items() if value}
