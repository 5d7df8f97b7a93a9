"""A spec as plain data and back: TOML files of the user's and the resolved spec in a run directory are one format.

name = "my-norm"
models = 32
steps = 20_000
placements = ["pre", "mine"]

[task]                              # or several, as [[task]]
v = 9
train_lengths = [2, 3]

[placement.mine]                    # any of the five positions
block_out = true

[hyperparameters]                   # fix a row or narrow it; the rest is drawn as in the paper
peak_learning_rate = 1e-3
weight_decay = [1e-6, 1e-2]
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from typing import Any

from resharpen.errors import UserError, unknown
from resharpen.experiments.families import FAMILIES, Family
from resharpen.experiments.spec import Experiment, Setting
from resharpen.models import POSITIONS, Model, Placement
from resharpen.optim.hyperparameters import TABLE, Row, narrowed
from resharpen.tasks import OwnLanguage, SetComplement, Task

Data = Mapping[str, Any]

_NUMBERS = ("models", "steps", "batch", "checkpoints", "seed")
_TEXTS = ("name", "engine", "attention")
_TOP = (*_TEXTS, "placements", "placement", "task", "hyperparameters", *_NUMBERS)


def read_toml(path: Path) -> Experiment:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid TOML: {error}") from error
    try:
        return from_data({"name": path.stem, **data})
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def from_data(data: Data) -> Experiment:
    """The experiment that plain data describes; anything unknown or of the wrong type is an error."""
    _known("key", data, _TOP)
    for name in ("task", "models", "steps"):
        if name not in data:
            raise UserError(f"'{name}' is missing")
    tasks = data["task"] if isinstance(data["task"], list) else [data["task"]]
    plain: dict[str, Any] = {name: _whole(name, data[name]) for name in _NUMBERS if name in data}
    plain |= {name: _typed(name, data[name], str, "a text") for name in _TEXTS if name in data}
    try:
        settings = tuple(setting for task in tasks for setting in _settings(_table("task", task)))
        built_in = settings[0].model.placements
        plain.setdefault("batch", FAMILIES[settings[0].task.kind].batch)
        tables = _table("placement", data.get("placement", {})).items()
        own = {name: _placement(name, table, built_in) for name, table in tables}
        return Experiment(
            settings=settings,
            placements=_chosen(data.get("placements", list(own)), {**built_in, **own}),
            hyperparameters={**TABLE, **_rows(_table("hyperparameters", data.get("hyperparameters", {})))},
            **plain,
        )
    except ValueError as error:
        raise error if isinstance(error, UserError) else UserError(str(error)) from error


def to_data(experiment: Experiment) -> dict[str, Any]:
    """The resolved spec: nothing left to a default."""
    return {
        **{name: getattr(experiment, name) for name in _TEXTS},
        **{name: getattr(experiment, name) for name in _NUMBERS},
        "placements": list(experiment.placements),
        "placement": {name: asdict(placement) for name, placement in experiment.placements.items()},
        "task": _tasks_data(experiment.settings),
        "hyperparameters": {name: _row_data(row) for name, row in experiment.hyperparameters.items()},
    }


def differences(old: Data, new: Data, prefix: str = "") -> list[str]:
    """Every leaf that is not the same, as `key: old -> new`."""
    lines = []
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            lines += differences(before, after, f"{prefix}{key}.")
        elif before != after:
            lines.append(f"{prefix}{key}: {before} -> {after}")
    return lines


def _settings(task: Data) -> list[Setting]:
    kind = str(task.get("kind", SetComplement.kind))
    if kind not in FAMILIES:
        raise unknown("task", kind, FAMILIES)
    family = FAMILIES[kind]
    own = {name: value for name, value in task.items() if name not in ("kind", "train_lengths", "model")}
    if family.task is OwnLanguage:
        made: Task = OwnLanguage.from_data(own)
    else:
        needed, defaults = _whole_fields(family.task)
        _known("key in [task]", task, ["kind", "train_lengths", "model", *needed, *defaults])
        for name in needed if family.train_length else [*needed, "train_lengths"]:
            if name not in task:
                raise UserError(f"[task] needs '{name}'")
        made = family.task(**{name: _whole(name, value) for name, value in own.items()})
    model = _model(family, made, _table("task.model", task.get("model", {})))
    usual = [family.train_length(made)] if family.train_length else []
    lengths = _typed("train_lengths", task.get("train_lengths", usual), list, "a list of whole numbers")
    if not lengths:
        raise UserError("train_lengths = []: at least one training length")
    if len(set(lengths)) != len(lengths):
        raise UserError(f"train_lengths = {lengths}: a length stands there twice")
    return [Setting(made, _whole("train_lengths", length), model) for length in lengths]


def _model(family: Family, task: Task, sizes: Data) -> Model:
    """The usual model of a task with the sizes that are given."""
    usual = family.usual_model(task)
    names = [*itertools.chain(*_whole_fields(family.model))]
    _known("key in [task.model]", sizes, ["kind", *names])
    if sizes.get("kind", usual.kind) != usual.kind:
        raise unknown("model", str(sizes["kind"]), [usual.kind])
    return replace(usual, **{name: _whole(name, sizes[name]) for name in names if name in sizes})  # pyright: ignore[reportArgumentType]


def _whole_fields(kind: type[Any]) -> tuple[list[str], list[str]]:
    """The fields of a task or model, all whole numbers: those that must be given, and those with a default."""
    needed = [field.name for field in fields(kind) if field.default is MISSING]
    return needed, [field.name for field in fields(kind) if field.default is not MISSING]


def _tasks_data(settings: Iterable[Setting]) -> list[dict[str, Any]]:
    """Settings that differ in the training length only make one [task]."""
    tasks: dict[tuple[Task, Model], list[int]] = {}
    for setting in settings:
        tasks.setdefault((setting.task, setting.model), []).append(setting.train_length)
    return [
        {
            "kind": task.kind,
            **(task.as_data() if isinstance(task, OwnLanguage) else asdict(task)),  # pyright: ignore[reportArgumentType]
            "train_lengths": lengths,
            "model": {"kind": model.kind, **asdict(model)},  # pyright: ignore[reportArgumentType]
        }
        for (task, model), lengths in tasks.items()
    ]


def _placement(name: str, table: Any, built_in: Mapping[str, Placement]) -> Placement:
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise UserError(f"placement name {name!r}: allowed are letters, digits, '-' and '_'")
    positions = _table(f"placement.{name}", table)
    _known(f"position in [placement.{name}]", positions, POSITIONS)
    placement = Placement(**{key: _typed(key, value, bool, "true or false") for key, value in positions.items()})
    if name in built_in and placement != built_in[name]:
        raise UserError(f"placement '{name}' is built in: choose another name for your own")
    return placement


def _chosen(names: Any, known: Mapping[str, Placement]) -> dict[str, Placement]:
    for name in _typed("placements", names, list, "a list of names"):
        if name not in known:
            raise unknown("placement", str(name), known)
    return {name: known[name] for name in names}


def _rows(table: Data) -> dict[str, Row]:
    _known("hyperparameter", table, TABLE)
    return {name: narrowed(name, _number_or_pair(name, value)) for name, value in table.items()}


def _row_data(row: Row) -> float | list[float]:
    return row.low if row.low == row.high else [row.low, row.high]


def _number_or_pair(name: str, value: Any) -> float | tuple[float, float]:
    numbers = value if isinstance(value, list) else [value]
    if len(numbers) not in (1, 2) or any(isinstance(x, bool) or not isinstance(x, int | float) for x in numbers):
        raise UserError(f"{name} = {value!r}: allowed are a number or [low, high]")
    return float(numbers[0]) if len(numbers) == 1 else (float(numbers[0]), float(numbers[1]))


def _known(what: str, given: Iterable[str], allowed: Iterable[str]) -> None:
    allowed = list(allowed)
    for name in given:
        if name not in allowed:
            raise unknown(what, name, allowed)


def _table(name: str, value: Any) -> Data:
    return _typed(name, value, dict, "a table")


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool):
        raise UserError(f"{name} = {value!r}: must be a whole number")
    return _typed(name, value, int, "a whole number")


def _typed(name: str, value: Any, kind: type, words: str) -> Any:
    if not isinstance(value, kind):
        raise UserError(f"{name} = {value!r}: must be {words}")
    return value
