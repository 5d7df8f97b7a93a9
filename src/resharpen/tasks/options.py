"""Options that a spec may add to any task: the user's metrics, the number of sequences in the report set, and further
test distributions, which are the same task with other parameters.

They are not fields of the task: they change neither training nor the choice of checkpoints, so random streams and the
columns of the tables do not depend on them. They are part of a spec and of the identity of a shard if given.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from math import nan
from typing import TYPE_CHECKING, Any, TypeVar

from resharpen import own
from resharpen.errors import UserError, unknown
from resharpen.plain import typed
from resharpen.tasks.metrics import METRICS, OF_SEQUENCES, ON_REQUEST, PlaceMetric

if TYPE_CHECKING:
    from resharpen.tasks.task import Task

T = TypeVar("T", bound="Task")
Own = str | PlaceMetric
"""A metric that is asked for: a name in `ON_REQUEST`, or the user's, as FILE.py:NAME or as a Python object, which
cannot be stored."""
Tests = Mapping[str, "Mapping[str, Any] | Task"]
"""Name of a test -> the fields of the task that differ, or the whole task."""
KEYS = ("metrics", "sequences", "test")
"""Keys in a [task] table."""


def own_metrics(task: Task) -> dict[str, PlaceMetric]:
    """Name -> metric that was asked for."""
    return {name_of(x): x if isinstance(x, PlaceMetric) else _found(x, task) for x in task.own_metrics}


def _found(name: str, task: Task) -> PlaceMetric:
    return ON_REQUEST[name](task.least_legal) if name in ON_REQUEST else _known(name)


@cache
def _known(name: str) -> PlaceMetric:
    on_request = {given: make(lambda: nan) for given, make in ON_REQUEST.items()}
    return own.find_in({**METRICS, **on_request}, PlaceMetric, "metric", name)


def name_of(given: Own) -> str:
    return given.name if isinstance(given, PlaceMetric) else own.short(given)


def with_options(task: T, metrics: Sequence[Own] = (), sequences: int | None = None, tests: Tests | None = None) -> T:
    if not metrics and sequences is None and not tests:
        return task
    made = copy.copy(task)
    if sequences is not None and "sequences" in {field.name for field in fields(task)}:  # pyright: ignore[reportArgumentType]
        made, sequences = replace(made, sequences=sequences), None  # pyright: ignore[reportArgumentType]
    if sequences is not None:
        if typed("sequences", sequences, int) < 2:
            raise UserError(f"sequences = {sequences}: must be at least 2")
        if not hasattr(task, "sequences"):
            raise UserError(f"sequences: not an option of {task.name}; its own fields set the size of its report set")
        object.__setattr__(made, "report_sequences", sequences)
        if not made.validation(0, "report").sampled:
            raise UserError(f"sequences = {sequences}: the report set of {task.name} is every state, not a sample")
    mine = list(task.own_metrics)
    for given in metrics:
        if isinstance(given, PlaceMetric) or own.is_own(typed("metrics", given, str)):
            if name_of(given) in {*task.metrics, *map(name_of, mine), *ON_REQUEST, *OF_SEQUENCES}:
                raise UserError(f"metric '{name_of(given)}' already exists in {task.name}: choose another name")
            mine.append(given)
            continue
        of_places = OF_SEQUENCES[given][0] if given in OF_SEQUENCES else given
        _found(of_places, task)  # raises if it does not exist
        if of_places in ON_REQUEST and of_places not in mine:  # others are reported anyway
            mine.append(of_places)
    object.__setattr__(made, "own_metrics", tuple(mine))
    own_metrics(made)  # raises for a misspelled name
    if missing := [name_of(x) for x in mine if name_of(x) not in made.metrics]:
        why = "it has no p*" if not made.further else "its class defines `metrics`: add **self.further_metrics() there"
        raise UserError(f"metric '{missing[0]}' cannot be added to {task.name}: {why}")
    if tests:
        changes = {name: _changed(task, name, given) for name, given in tests.items()}
        object.__setattr__(made, "tests", {**task.tests, **changes})
        for name in changes:
            tested(made, name)  # raises for wrong parameters
    return made


def _changed(task: Task, name: str, given: Any) -> dict[str, Any]:
    """The fields of a test that differ from the task."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", name):
        raise UserError(f"test {name!r}: names may have letters, digits, '-', '_', '+' and '.'")
    if type(given) is type(task):
        before = task.as_data()
        return {key: x for key, x in given.as_data().items() if key not in before or before[key] != x}
    return dict(typed(f"test.{name}", given, Mapping, "a table of the task's fields"))


def tested(task: T, test: str) -> T:
    """The task of a further test distribution; the task itself without a name."""
    if not test:
        return task
    if test not in task.tests:
        raise unknown("test", test, task.tests)
    before, changes = task.as_data(), task.tests[test]
    try:
        if not changes:
            raise UserError("no field differs from the task: set at least one")
        made = type(task).from_data({**before, **changes})
    except own.OwnCodeError:
        raise
    except ValueError as error:
        raise UserError(f"test '{test}': {error}") from error
    if made.vocabulary != task.vocabulary:
        raise UserError(f"test '{test}': its vocabulary is {made.vocabulary}, that of the task is {task.vocabulary}")
    if made.longest_input and task.longest_input and made.longest_input > task.longest_input:  # a limit of models
        longest = f"its inputs have up to {made.longest_input} tokens"
        raise UserError(f"test '{test}': {longest}, but those of the task at most {task.longest_input}")
    return with_options(made, task.own_metrics, task.report_sequences)


def split(cls: type[Task], table: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A [task] table without the options that are not fields of the task, and the options."""
    names = {field.name for field in fields(cls)}  # pyright: ignore[reportArgumentType]
    given = {key: x for key, x in table.items() if key in KEYS and key not in names}
    words = {"metrics": (list, "a list of names"), "test": (dict, "tables of fields, [task.test.NAME]")}
    given = {key: typed(key, x, *words[key]) if key in words else x for key, x in given.items()}
    return {key: x for key, x in table.items() if key not in given}, given


def as_data(task: Task) -> dict[str, Any]:
    """The given options, as in a [task] table."""
    if objects := [x.name for x in task.own_metrics if isinstance(x, PlaceMetric)]:
        raise UserError(f"metric '{objects[0]}' is a Python object: a run needs its file, as FILE.py:{objects[0]}")
    found = {"metrics": list(task.own_metrics), "sequences": task.report_sequences, "test": dict(task.tests)}
    return {key: value for key, value in found.items() if value}
