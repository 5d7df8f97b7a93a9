"""Runs and references that somebody doctored, with hashes and checksums made to fit: the same result, or one line."""

import contextlib
import io
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from make_reference import write_reference
from runs import doctor, doctor_reference, forge

import resharpen as rs
from resharpen.cli import main
from resharpen.experiments.keeping.store import Run
from resharpen.experiments.specs.schema import SCORES, TABLES

QUICK = 40
"""Trials of each kind in every run of the tests; the slow ones try everything."""
OTHERS = {pl.String: ["x", "", "sct-v4-s1/pre/1", None], pl.Int64: [-1, 10**12, None]}
OTHERS[pl.Float64] = OTHERS[pl.Float32] = [-1.0, 1e12, float("nan"), float("inf")]
OTHERS[pl.List] = [[], [1e12], [float("nan")] * 10]


MAY_BE_NULL = {column.name for columns in (*TABLES.values(), SCORES) for column in columns if column.null}
"""Null is a result here: of a model that diverged."""


def outcome(*args: object) -> tuple[int, str]:
    """The exit code of a command and what it says; a traceback fails the test."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(arg) for arg in args])
        except SystemExit as ended:
            code = int(ended.code or 0)
    if code == 2:
        assert err.getvalue().startswith("resharpen: ")
        assert err.getvalue().count("\n") == 1, err.getvalue()
    return code, "\n".join(sorted(out.getvalue().splitlines()))  # the order of rows in a file means nothing


def in_first_row(name: str, value: Any) -> Callable[[pl.DataFrame], pl.DataFrame]:
    def change(table: pl.DataFrame) -> pl.DataFrame:
        here = pl.int_range(pl.len()) == 0
        return table.with_columns(pl.when(here).then(pl.lit(value, table.schema[name])).otherwise(name).alias(name))

    return change


def table_changes(name: str, table: pl.DataFrame) -> dict[str, Callable[[pl.DataFrame], pl.DataFrame]]:
    """What can be done to a table, by what it is."""
    changes: dict[str, Callable[[pl.DataFrame], pl.DataFrame]] = {
        "emptied": lambda t: t.head(0),
        "no columns": lambda t: t.select(),
        "doubled": lambda t: pl.concat([t, t]),
        "a row twice": lambda t: pl.concat([t, t.tail(1)]),
        "a row less": lambda t: t.head(-1),
        "shuffled": lambda t: t.sample(fraction=1.0, shuffle=True, seed=0),
        "reversed": lambda t: t.select(reversed(t.columns)),
    }
    for column, kind in table.schema.items():
        changes |= {
            f"{column} dropped": lambda t, c=column: t.drop(c),
            f"{column} renamed": lambda t, c=column: t.rename({c: f"{c}_"}),
            f"{column} as text": lambda t, c=column: t.with_columns(pl.col(c).cast(pl.String)),
            f"{column} in a list": lambda t, c=column: t.with_columns(pl.concat_list(c)),
        }
        if column not in MAY_BE_NULL:
            changes[f"{column} null"] = lambda t, c=column: t.with_columns(pl.lit(None, t.schema[c]).alias(c))
            changes[f"{column} of no type"] = lambda t, c=column: t.with_columns(pl.lit(None).alias(c))
        if kind.is_numeric():
            changes[f"{column} as fractions"] = lambda t, c=column: t.with_columns(pl.col(c).cast(pl.Float64))
            changes[f"{column} as bool"] = lambda t, c=column: t.with_columns(pl.col(c).cast(pl.Boolean))
            changes[f"{column} narrow"] = lambda t, c=column: t.with_columns(
                pl.col(c).cast(pl.Float32 if t.schema[c].is_float() else pl.Int32)
            )
        for value in OTHERS[kind.base_type()]:
            changes[f"{column} = {value!r}"] = in_first_row(column, value)
    return {f"{name}: {what}": change for what, change in changes.items()}


VALUES = [None, -1, 0, 1.5, float("nan"), 10**12, 10**30, True, "", "x", "../x", "x\x1b[2J", [], ["x"], {}, {"x": 1}]


def header_changes(header: dict[str, Any]) -> list[tuple[tuple[Any, ...], Any]]:
    """(where, what to put there) for every place of a header; Ellipsis deletes."""

    def places(data: Any, path: tuple[Any, ...] = ()):
        for key in data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ():
            yield (*path, key)
            yield from places(data[key], (*path, key))

    return [(place, value) for place in places(header) if place[0] != "checksum" for value in (*VALUES, ...)]


def put(place: tuple[Any, ...], value: Any) -> Callable[[dict[str, Any]], None]:
    def change(header: Any) -> None:
        for key in place[:-1]:
            header = header[key]
        if value is ...:
            del header[place[-1]]
        else:
            header[place[-1]] = value

    return change


class Trials:
    """A finished run and its reference, of which one is doctored at a time, and what commands say of them otherwise."""

    def __init__(self, whole: Run, directory: Path):
        self.sound = shutil.copytree(whole.directory, directory / "sound" / "run")
        self.kept = write_reference(Run(self.sound), rs.scores(Run(self.sound)), directory / "sound" / "kept").directory
        self.run, self.reference = directory / "run", directory / "kept"
        self.expected = {command: self.say(command, self.sound, self.kept) for command in ("results", "verify")}
        self.tables = {name: Run(self.sound).table(name) for name in TABLES}

    def say(self, command: str, run: Path, reference: Path) -> tuple[int, str]:
        return outcome(command, run, *(["--reference", reference] if command == "verify" else []))

    def again(self) -> None:
        for old, new in ((self.sound, self.run), (self.kept, self.reference)):
            shutil.rmtree(new, ignore_errors=True)
            shutil.copytree(old, new)

    def check(self, what: str, looked_at: Path, others: tuple[str, ...] = ()) -> None:
        """Looked at alone, held against the other, and, if it is still a result, whatever else can be done with it."""
        code, said = outcome("results", looked_at)
        assert code == 2 or (code, said) == self.expected["results"], what
        run, reference = (looked_at, self.kept) if looked_at == self.run else (self.sound, looked_at)
        verified = self.say("verify", run, reference)
        assert verified[0] in (1, 2) or verified == self.expected["verify"], what
        assert code == 0 or verified[0] == 2 or "curves" in what, what
        for command in others if code == 0 else ():
            out = looked_at.parent / ("page.html" if command == "report" else "out")
            assert outcome(command, looked_at, *([] if command == "claims" else ["--out", out]))[0] in (0, 2), what


def some(kinds: list, many: int | None) -> list:
    return kinds if many is None else random.Random(0).sample(kinds, many)


@pytest.fixture
def trials(whole, tmp_path) -> Trials:
    return Trials(whole, tmp_path)


MANY = pytest.mark.parametrize("many", [QUICK, pytest.param(None, marks=pytest.mark.slow)])


@MANY
def test_doctored_tables_of_a_run(trials, many):
    changes = [(name, *x) for name in TABLES for x in table_changes(name, trials.tables[name]).items()]
    for i, (name, what, change) in enumerate(some(changes, many)):
        trials.again()
        doctor(Run(trials.run), name, change, slice(1))
        trials.check(what, trials.run, ("claims", "report") if i % 10 == 0 else ())


@MANY
def test_doctored_tables_of_a_reference(trials, many):
    tables = {name: pl.read_parquet(next(trials.kept.glob(f"{name}-*.parquet"))) for name in ("models", "lengths")}
    changes = [(name, *x) for name, table in tables.items() for x in table_changes(name, table).items()]
    for i, (name, what, change) in enumerate(some(changes, many)):
        trials.again()
        doctor_reference(trials.reference, name, change)
        trials.check(what, trials.reference, ("claims", "report") if i % 10 == 0 else ())


@MANY
def test_doctored_headers_of_references(trials, many):
    header = json.loads((trials.kept / "reference.json").read_text())
    for i, (place, value) in enumerate(some(header_changes(header), many)):
        trials.again()
        forge(trials.reference / "reference.json", put(place, value))
        trials.check(f"{place} = {value!r}", trials.reference, ("claims", "report") if i % 10 == 0 else ())


@MANY
def test_doctored_manifests(trials, many):
    """A finished shard whose manifest is none is not a result; one that says less of how it was made is."""
    path = next(trials.sound.rglob("manifest.json")).relative_to(trials.sound)
    manifest = json.loads((trials.sound / path).read_text())
    for place, value in some(header_changes(manifest), many):
        trials.again()
        change = dict(manifest) | {key: dict(x) for key, x in manifest.items() if isinstance(x, dict)}
        put(place, value)(change)
        (trials.run / path).write_text(json.dumps(change))
        trials.check(f"{place} = {value!r}", trials.run)
