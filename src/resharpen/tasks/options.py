"""What a spec may add to any task: metrics of the user's own, and the number of sequences in the report set.

They are not fields of the task: they change no sequence, no model and no choice of checkpoints, so that random streams
and the columns of the tables stay as they are. A spec and the identity of a shard have them where they are given.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from resharpen import own
from resharpen.errors import UserError
from resharpen.plain import typed
from resharpen.tasks.metrics import METRICS, PlaceMetric

if TYPE_CHECKING:
    from resharpen.tasks.task import Task

T = TypeVar("T", bound="Task")
Own = str | PlaceMetric
"""A metric of the user's: FILE.py:NAME, or the thing itself, which cannot be stored."""
KEYS = ("metrics", "sequences")
"""In a [task] table."""


@cache
def own_metrics(given: tuple[Own, ...]) -> dict[str, PlaceMetric]:
    """Name -> metric of the user's own."""
    return {name_of(x): x if isinstance(x, PlaceMetric) else _found(x) for x in given}


def _found(name: str) -> PlaceMetric:
    return own.find_in(METRICS, PlaceMetric, "metric", name)


def name_of(given: Own) -> str:
    return given.name if isinstance(given, PlaceMetric) else own.short(given)


def with_options(task: T, metrics: Sequence[Own] = (), sequences: int | None = None) -> T:
    if not metrics and sequences is None:
        return task
    made = copy.copy(task)
    if sequences is not None and "sequences" in {field.name for field in fields(task)}:  # pyright: ignore[reportArgumentType]
        made, sequences = replace(made, sequences=sequences), None  # pyright: ignore[reportArgumentType]
    if sequences is not None:
        if typed("sequences", sequences, int) < 2:
            raise UserError(f"sequences = {sequences}: at least 2, one to tell from another")
        if not hasattr(task, "sequences"):
            raise UserError(f"sequences: {task.name} has no such number; its report set is sized by its own fields")
        object.__setattr__(made, "report_sequences", sequences)
        if not made.validation(0, "report").sampled:
            raise UserError(f"sequences = {sequences}: the report set of {task.name} is every state, not a sample")
    mine = list(task.own_metrics)
    for given in metrics:
        if isinstance(given, PlaceMetric) or own.is_own(typed("metrics", given, str)):
            if name_of(given) in {**task.metrics, **dict.fromkeys(map(name_of, mine))}:
                raise UserError(f"metric '{name_of(given)}' is there already in {task.name}: choose another name")
            mine.append(given)
        else:
            _found(given)  # it is reported anyway, unless there is no such thing
    object.__setattr__(made, "own_metrics", tuple(mine))
    own_metrics(tuple(mine))  # a misspelt name says so here
    if missing := [name_of(x) for x in mine if name_of(x) not in made.metrics]:
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
    if objects := [x.name for x in task.own_metrics if isinstance(x, PlaceMetric)]:
        raise UserError(f"metric '{objects[0]}' is a Python object: a run needs its file, as FILE.py:{objects[0]}")
    found = {"metrics": list(task.own_metrics), "sequences": task.report_sequences}
    return {key: value for key, value in found.items() if value}
