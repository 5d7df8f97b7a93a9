"""Parsing of the command line: top-level help, and one-line errors."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro
from tyro.conf import FlagCreatePairsOff, Positional

from resharpen.errors import UserError, unknown

NUMBERS = {int: "a whole number", float: "a number"}

RULE = re.compile(r"─+╮|─{5,}|-{5,}")


def overview(commands: Mapping[str, type]) -> str:
    """The text of `resharpen --help`: one line per command."""
    width = max(map(len, commands))
    lines = [f"  {name:{width}}  {first_sentence(command)}" for name, command in commands.items()]
    return "\n".join(
        [
            "usage: resharpen COMMAND ...",
            "",
            "Test which parts let small attention models generalize to longer inputs.",
            "",
            *lines,
            "",
            "Start with: resharpen run fig1 --scale smoke",
            "Options and examples of a command: resharpen COMMAND --help",
        ]
    )


def first_sentence(command: type) -> str:
    """The first sentence of its docstring, without a list after a colon.

    >>> class Example:
    ...     '''Compare runs: draws and
    ...     scores. Then more.'''
    >>> first_sentence(Example)
    'Compare runs'
    """
    text = " ".join((command.__doc__ or "").split("\n\n")[0].split())
    return re.split(r"[.:;](?:\s|$)", text)[0]


def parse(commands: Mapping[str, type], words: Sequence[str]) -> Any:
    """The command of these arguments; UserError, in one line, if they are invalid."""
    name, *given = words
    if name not in commands:
        if name.startswith("-"):
            raise unknown("option", name, ["--help", "--version"])
        raise unknown("command", name, commands)
    _check(commands[name], name, given)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(commands[name], prog=f"resharpen {name}", args=given, config=(FlagCreatePairsOff,))
    except SystemExit as end:
        if end.code in (0, None):
            raise
        text = " ".join(RULE.split(said.getvalue())[1].replace("│", " ").split())  # after the title of a box
        text = re.sub(r"Missing from resharpen \w+: (\S+) (.*?)\.? \(required\).*", r"\1 is missing: \2", text)
        raise UserError(f"{text.rstrip('.')} (see: resharpen {name} --help)") from None


def _check(command: type, name: str, given: Sequence[str]) -> None:
    """UserError for an unknown option, or a value that is not among those allowed."""
    hints, options = get_type_hints(command, include_extras=True), dict[str, tuple[Any, ...]]()
    for field in fields(command):
        kinds = _kinds(hints[field.name])
        if Positional not in kinds:
            named = next((kind.name for kind in kinds if hasattr(kind, "metavar") and kind.name), field.name)
            options[f"--{named.replace('_', '-')}"] = kinds
    for i, word in enumerate(given):
        option, equals, value = word.partition("=")
        if not option.startswith("--") or option == "--":
            continue
        option = option.replace("_", "-")
        if option not in options and option != "--help":
            raise unknown(f"option of `resharpen {name}`", option, options)
        value = value if equals else next(iter(given[i + 1 : i + 2]), "")
        for kind in options.get(option, ()) if value else ():
            if get_origin(kind) is Literal and value not in get_args(kind):
                raise unknown(option[2:], value, get_args(kind))
            if kind in NUMBERS and not _is(kind, value):
                raise UserError(f"{option} {value}: must be {NUMBERS[kind]}")


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The types that a hint allows, and its annotations."""
    if get_origin(hint) is Annotated:
        inner, *more = get_args(hint)
        return (*_kinds(inner), *more)
    if get_origin(hint) is Literal or not get_args(hint):
        return (hint,)
    return tuple(kind for inner in get_args(hint) for kind in _kinds(inner))


def _is(kind: Any, value: str) -> bool:
    try:
        kind(value)
    except ValueError:
        return False
    return True
