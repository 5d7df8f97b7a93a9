"""Specs as plain data: TOML files of users, the resolved spec in a run directory, and identity hashes of shards.

name = "my-norm"
models = 32
steps = 20_000
variants = ["pre", "peri+log-n", "mine"]
baseline = "pre"                    # what the others are compared with; by default the first

[task]                              # or several, as [[task]]
v = 9
train_lengths = [2, 3]

[variant.mine]                      # a variant that is not a sum of built-in parts
placement = { block_out = true }    # any of the seven sites
norm = "dyt.py:dyt"                 # your own code: FILE.py:NAME, relative to this file, wherever a name is allowed

[hyperparameters]                   # fix or narrow a row; the others are drawn as in the paper
peak_learning_rate = 1e-3
weight_decay = [1e-6, 1e-2]
ema_lag = { low = 1.0, high = 1e3, scale = "linear" }    # or change its scale
"""

import contextlib
import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from resharpen import own
from resharpen.errors import UserError
from resharpen.experiments.specs.spec import Experiment, Setting, Shard, roles
from resharpen.experiments.specs.variant import choose, from_table
from resharpen.models import Model, find_model
from resharpen.optim.hyperparameters import TABLE, Row
from resharpen.paths import absolute
from resharpen.plain import Data, known, shown, typed
from resharpen.tasks import SetComplement, Task, find_task, options

Refer = Callable[[str], str]
"""Turns a name in a spec into a built-in name or a reference, which do not depend on the working directory."""
_TABLES = ("variants", "variant", "task", "hyperparameters")
"""Top-level keys that are not plain fields of an experiment."""
_FORMER = {"placements": "variants", "placement": "variant", "norms": "variants", "attention": "variants"}


def read_toml(path: str | Path) -> Experiment:
    path, file = Path(path), absolute(path)
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, a number of thousands of digits, too deep
        raise UserError(f"{path}: not valid TOML: {error}") from error
    try:
        return from_data({"name": path.stem, **data}, file.parent)
    except own.OwnCodeError:
        raise
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def parse_task(text: str) -> dict[str, Any]:
    """The [task] table of `dyck,k=8,m=10`: a kind, and keys as in a TOML file.

    >>> parse_task("set-complement,v=9,train_lengths=[2,3]")
    {'kind': 'set-complement', 'v': 9, 'train_lengths': [2, 3]}
    """
    kind, *given = re.split(r",(?![^\[{]*[\]}])", text)
    try:
        return {"kind": kind, **tomllib.loads("\n".join(given))}
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"task {text}: write KIND,KEY=VALUE,... such as dyck,k=8,m=10 ({error})") from error


def from_data(data: Data, base: Path | None = None) -> Experiment:
    """The experiment from a user's data; UserError for unknown keys and wrong types. Paths of user code are relative to
    `base`."""
    return _experiment(data, _from(base), base)


def task_of(table: Data) -> Task:
    """The task of a user's [task] table, ignoring its training lengths."""
    with _user_errors():
        return _task(table, _from(None), None)


def settings_of(table: Data) -> tuple[Setting, ...]:
    """The settings of a user's [task] table."""
    with _user_errors():
        return tuple(_settings(table, _from(None)))


@contextlib.contextmanager
def _user_errors() -> Iterator[None]:
    """Tasks and models raise a ValueError for sizes that make no sense."""
    try:
        yield
    except ValueError as error:
        raise error if isinstance(error, UserError) else UserError(str(error)) from error


def _from(base: Path | None) -> Refer:
    return lambda name: own.refer(name, base) if own.is_own(name) else name


def from_stored(data: Data, path: Path) -> Experiment:
    """The experiment in the header of a run or a reference, as written by `to_data`. It may come from others, so it may
    name code only by hash, and nothing in it is used as a path."""
    names, tables = data.get("variants"), data.get("variant", {})
    try:
        if isinstance(names, list) and isinstance(tables, dict):
            for name in (name for name in names if isinstance(name, str) and name not in tables):
                raise UserError(f"variant '{name}' has no table: a stored spec has one for each of its variants")
        return _experiment(data, own.stored)
    except own.OwnCodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {error}") from error


def _experiment(data: Data, refer: Refer, base: Path | None = None) -> Experiment:
    for name in data:
        if name in _FORMER:
            raise UserError(f"unknown key '{name}': use '{_FORMER[name]}' instead")
    kinds = _plain_fields(Experiment)
    known("key", data, (*kinds, *_TABLES))
    for name in ("task", "models", "steps", "name"):
        if name not in data:
            raise UserError(f"'{name}' is missing")
    tasks = data["task"] if isinstance(data["task"], list) else [data["task"]]
    plain: dict[str, Any] = {name: typed(name, data[name], kind) for name, kind in kinds.items() if name in data}
    with _user_errors():
        settings = tuple(setting for task in tasks for setting in _settings(typed("task", task, dict), refer))
        tables = typed("variant", data.get("variant", {}), dict)
        mine = {name: from_table(name, table, refer) for name, table in tables.items()}
        variants = choose(typed("variants", data.get("variants", list(mine)), list, "a list of names"), mine, base)
        given = typed("hyperparameters", data.get("hyperparameters", {}), dict)
        rows = {name: _row(name, x) if isinstance(x, dict) else x for name, x in given.items()}
        return Experiment(settings=settings, variants=variants, hyperparameters=rows, **plain)


def to_data(experiment: Experiment) -> dict[str, Any]:
    """The resolved spec, without defaults."""
    return {
        **{name: x for name in _plain_fields(experiment) if (x := getattr(experiment, name)) is not None},
        "variants": list(experiment.variants),
        "variant": {name: variant.as_data() for name, variant in experiment.variants.items()},
        "task": tasks_data(experiment.settings),
        "hyperparameters": _given_data(experiment),
    }


def _plain_fields(experiment: type[Experiment] | Experiment) -> dict[str, type]:
    return {name: role.kind for name, role in roles(experiment).items() if role.kind is not None}


def search_data(experiment: Experiment) -> dict[str, Any]:
    """The hyperparameter table of each variant, recorded to detect changed defaults. A row that the spec narrows has a
    scale unless it is that of the paper's row, or log: earlier versions assumed those."""
    before = {name: TABLE.get(name, Row(1.0, 1.0)) for name in experiment.hyperparameters}
    data = {}
    for name, variant in experiment.variants.items():
        usual = experiment.usual_rows(variant) | before
        data[name] = {row: _row_data(drawn, [usual[row]]) for row, drawn in experiment.rows(variant).items()}
    return data


def differences(old: Data, new: Data, prefix: str = "") -> list[str]:
    """Every leaf that differs, as `key: old -> new`."""
    lines = []
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            lines += differences(before, after, f"{prefix}{key}.")
        elif before != after:
            lines.append(f"{prefix}{key}: {before} -> {after}")
    return lines


def _settings(table: Data, refer: Refer) -> list[Setting]:
    if "train_length" in table and refer is not own.stored:
        raise UserError(
            f"unknown key 'train_length' in [task]: write a list, train_lengths = [{shown(table['train_length'])}]"
        )
    lengths = typed("train_lengths", table.get("train_lengths", [1]), list, "a list of whole numbers")
    if not lengths:
        raise UserError("train_lengths = []: at least one training length")
    if len({str(length) for length in lengths}) != len(lengths):
        raise UserError(f"train_lengths = {lengths}: a length occurs twice")
    lengths = [typed("train_lengths", length, int) for length in lengths]
    named = "train_lengths" in table
    task = _task(table, refer, max(lengths) if named else None)
    given = table.get("model", {})
    given = {"kind": given} if isinstance(given, str) else typed("task.model", given, dict, "a name or a table")
    model = _model(task, given, refer)
    # a stored spec has all sizes, including those the user did not name
    sizes = None if refer is own.stored else tuple(name for name in given if name != "kind")
    if not named:
        if task.usual_train_length is None:
            raise UserError("[task] needs 'train_lengths'")
        lengths = [task.usual_train_length]
    return [Setting(task, length, model, sizes) for length in lengths]


def _task(table: Data, refer: Refer, longest: int | None) -> Task:
    """The task of a [task] table, given its longest training length, if any."""
    kind = find_task(refer(typed("kind", table.get("kind", SetComplement.kind), str)))
    known_to_task = {"train_length": longest} if longest is not None and kind.knows_training else {}
    own_fields = {key: x for key, x in table.items() if key not in ("kind", "train_lengths", "model")}
    data, further = options.split(kind, {**known_to_task, **own_fields})
    names = [refer(typed("metrics", name, str)) for name in further.get("metrics", ())]
    return kind.from_data(data).with_options(names, further.get("sequences"), further.get("test"))


def _model(task: Task, table: Data, refer: Refer) -> Model:
    """The model of a task: the default of its kind, with the given sizes."""
    kind = refer(typed("kind", table.get("kind", task.usual_model), str))
    usual = find_model(kind).usual(task.vocabulary)
    names = [field.name for field in fields(usual)]  # pyright: ignore[reportArgumentType]
    sizes = {name: value for name, value in table.items() if name != "kind"}
    known(f"size in [task.model] of a {own.short(kind)}", sizes, names)
    return replace(usual, **{name: typed(name, value, int) for name, value in sizes.items()})  # pyright: ignore[reportArgumentType]


def tasks_data(settings: Iterable[Setting]) -> list[dict[str, Any]]:
    """Settings as [task] tables; settings that differ only in the training length share one table."""
    tasks: dict[tuple[Task, Model, str], list[int]] = {}
    for setting in settings:
        key = setting.task, setting.model, str(options.as_data(setting.task))
        tasks.setdefault(key, []).append(setting.train_length)
    return [
        {
            "kind": task.kind,
            **task.as_data(),
            **options.as_data(task),
            "train_lengths": lengths,
            "model": {"kind": model.kind, **{field.name: getattr(model, field.name) for field in fields(model)}},  # pyright: ignore[reportArgumentType]
        }
        for (task, model, _), lengths in tasks.items()
    ]


def _row(name: str, table: Data) -> Row:
    known(f"key in hyperparameters.{name}", table, ("low", "high", "scale", "floor"))
    if not {"low", "high"} <= set(table):
        raise UserError(f"hyperparameters.{name} needs 'low' and 'high'")
    floor = typed(f"floor of {name}", table.get("floor", False), bool)
    return Row(typed(name, table["low"], float), typed(name, table["high"], float), table.get("scale", "log"), floor)


def _given_data(experiment: Experiment) -> dict[str, Any]:
    """[hyperparameters]; a Row in the default scale of all variants is written as a pair."""
    usual = [experiment.usual_rows(variant) for variant in experiment.variants.values()]
    data: dict[str, Any] = {}
    for name, given in experiment.hyperparameters.items():
        if isinstance(given, Row):
            data[name] = _row_data(given, [rows[name] for rows in usual if name in rows])
        else:
            data[name] = list(given) if isinstance(given, tuple) else given
    return data


def _row_data(row: Row, usual: Iterable[Row]) -> Any:
    """[low, high], or a number if they are equal; a table if scale or floor differ from the defaults."""
    fixed = row.low == row.high
    if all((fixed or row.scale == x.scale) and row.floor == x.floor for x in usual):
        return row.low if fixed else [row.low, row.high]
    return {"low": row.low, "high": row.high, "scale": row.scale, "floor": row.floor}


def identities(experiment: Experiment, drawn: Mapping[str, Any]) -> Callable[[Shard], str]:
    """Identity hashes of shards: hashes of everything that can change results. `drawn` is the hyperparameter table of
    each variant as the run recorded it. Name and number of models are left out, so that a run can be extended."""
    shared = {name: getattr(experiment, name) for name, of_field in roles(experiment).items() if of_field.trains}
    digests = {}
    for setting in experiment.settings:
        for name, variant in experiment.variants.items():
            of_cell = {
                "task": tasks_data([setting]),
                "variant": variant.as_data(),
                "engine": variant.engine or experiment.engine,
                "drawn": drawn.get(name),
            }
            digests[setting.name, name] = hashlib.sha256(json.dumps({**shared, **of_cell}, sort_keys=True).encode())

    def identity(shard: Shard) -> str:
        digest = digests[shard.setting.name, shard.variant].copy()
        digest.update(shard.name.encode())
        return digest.hexdigest()[:32]

    return identity
