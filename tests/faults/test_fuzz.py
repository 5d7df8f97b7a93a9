"""Fuzzed specs, command lines and headers of runs: exit code 0 or 2, never a traceback."""

import contextlib
import io
import os
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runs import forge

from resharpen.cli import COMMANDS, main
from resharpen.errors import UserError
from resharpen.experiments.specs.toml import from_data

GOOD = {"models": 1, "steps": 3, "batch": 4, "checkpoints": 1, "variants": ["pre"], "engine": "torch"}
GOOD |= {"task": {"v": 3, "train_lengths": [1]}}


def quietly(args: list[str]) -> int:
    """The exit code; what is said may be any bytes."""
    said = io.TextIOWrapper(io.BytesIO(), "utf-8")
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            main(args)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def test_paths_that_are_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("x" * 5000, os.fsdecode(b"\xff\xfe"), "\udcff/y", "a/" * 3000):
        for args in (["run", path], ["status", path], ["run", "fig1", "--out", path, "--workers", "0", "--dry-run"]):
            assert quietly(args) == 2


numbers = st.one_of(st.integers(-3, 40), st.integers(), st.floats(), st.sampled_from([2**31, 10**30, 0, True]))
texts = st.one_of(
    st.text(max_size=8), st.sampled_from(["pre", "peri+log-n", "../x", "auto", "torch", "dyck", "x.py:y"])
)
anything = st.recursive(
    st.one_of(st.none(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)
keys = st.sampled_from(
    [
        "name",
        "models",
        "steps",
        "batch",
        "checkpoints",
        "seed",
        "engine",
        "device",
        "variants",
        "variant",
        "task",
        "hyperparameters",
        "nonsense",
    ]
)
task_keys = st.sampled_from(
    ["kind", "v", "k", "m", "n", "train_lengths", "model", "states", "sequences", "longest", "name"]
)
tasks = st.fixed_dictionaries(
    {"kind": st.sampled_from(["set-complement", "dyck", "tomita", "automaton", "max-retrieval", "nonsense"])},
    optional={
        "v": anything,
        "k": st.integers(-1, 3),
        "train_lengths": st.one_of(anything, st.lists(st.integers(-1, 5))),
    },
)
specs = st.builds(
    lambda changes, task, more: {**GOOD, "name": "x", **changes, **({"task": task | more} if task else {})},
    st.dictionaries(keys, anything, max_size=3),
    st.one_of(st.none(), tasks),
    st.dictionaries(task_keys, anything, max_size=2),
)


def check_spec(spec):
    with contextlib.suppress(UserError):
        from_data(spec)


EXAMPLES = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=150, **EXAMPLES)
@given(specs)
def test_a_fuzzed_spec_is_one_or_says_why_not(spec):
    check_spec(spec)


@pytest.mark.slow
@settings(max_examples=10_000, **EXAMPLES)
@given(specs)
def test_many_fuzzed_specs(spec):
    check_spec(spec)


OPTIONS = sorted({f"--{x.name.replace('_', '-')}" for command in COMMANDS.values() for x in fields(command)})
"""All options of all commands; of the few that have another name, and of what is no option, a misspelt one."""
SLOW = ("theory", "list", "reproduce", "submit")
"""They time, train or submit something before they look at what follows: only their help is tried."""
words = st.one_of(
    st.sampled_from([*COMMANDS, "fig1", "fig9", "RUN", "smoke", "0", "1", "4"]),
    st.sampled_from(["--help", *OPTIONS]),
    st.text(st.characters(exclude_characters="\0"), max_size=6),
    st.integers().map(str),
)
lines = st.one_of(
    st.lists(words, max_size=5),
    st.builds(lambda name, rest: [name, "RUN", *rest], st.sampled_from(sorted(COMMANDS)), st.lists(words, max_size=3)),
).filter(lambda args: not {"--dry-run", "--open", "--quick"} & set(args))


def check_line(args, run: Path):
    args = [str(run) if word == "RUN" else word for word in args]
    if args and args[0] in SLOW:
        args.append("--help")
    if args[:1] == ["run"]:
        args.append("--dry-run")
        if {"fig1", "--dry-run"} <= set(args) and "--engine" not in args:
            args += ["--workers", "0"]  # checked last: what is before it is looked at, nothing is timed
    with contextlib.chdir(run.parent):  # pictures may go anywhere
        assert quietly(args) in (0, 2)


@settings(max_examples=60, **EXAMPLES)
@given(lines)
def test_a_fuzzed_command_line_ends_with_0_or_2(finished, args):
    check_line(args, finished.directory)


@pytest.mark.slow
@settings(max_examples=2000, **EXAMPLES)
@given(lines)
def test_many_fuzzed_command_lines(finished, args):
    check_line(args, finished.directory)


PLACES = [
    *[("format",), ("spec",), ("drawn",), ("extents",), ("code",), ("provenance",), ("command",), ("drawn", "pre")],
    *[("spec", key) for key in ("models", "task", "variant", "variants", "engine", "hyperparameters", "seed")],
    *[("spec", "task", 0, "v"), ("spec", "task", 0, "model"), ("spec", "variant", "pre"), ("provenance", "started")],
]
headers = st.tuples(st.sampled_from(PLACES), anything)


def check_header(directory: Path, change):
    path, (where, value) = directory / "run.json", change
    good = path.read_text()

    def put(place):
        for key in where[:-1]:
            place = place[key]
        place[where[-1]] = value

    forge(path, put)
    try:
        for args in (["status", str(directory)], ["results", str(directory)]):
            assert quietly(args) in (0, 2)
    finally:
        path.write_text(good)


@settings(max_examples=60, **EXAMPLES)
@given(headers)
def test_a_fuzzed_header_ends_with_0_or_2(finished, change):
    check_header(finished.directory, change)


@pytest.mark.slow
@settings(max_examples=3000, **EXAMPLES)
@given(headers)
def test_many_fuzzed_headers(finished, change):
    check_header(finished.directory, change)


def test_the_fuzzer_knows_every_command(capsys):
    quietly(["--help"])
    assert {"run", "list", "verify", "report", "compare", "submit", "reproduce", "parts"} <= set(COMMANDS)
    assert {"--out", "--trust-code", "--selection", "--pool"} <= set(OPTIONS)
