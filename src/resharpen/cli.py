"""The command line: names of the commands, output, exit codes."""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
import warnings
from importlib import metadata
from typing import Annotated, NoReturn, get_args

from tyro.conf import subcommand

from resharpen.commands.asking import Doctor, ListFigures, ListParts, Theory
from resharpen.commands.looking import Claims, Compare, DrawFigure, Inspect, Report, Results, Status, Verify
from resharpen.commands.parsing import overview, parse
from resharpen.commands.scoring import Score
from resharpen.commands.tasks import ListTasks
from resharpen.commands.training import Reproduce, RunFigure, Submit
from resharpen.environment import check
from resharpen.errors import CONTROL, MACHINE, Failed, UserError
from resharpen.paths import fixed_here

Command = (
    Annotated[ListFigures, subcommand("list")]
    | Annotated[RunFigure, subcommand("run")]
    | Annotated[Reproduce, subcommand("reproduce")]
    | Annotated[Submit, subcommand("submit")]
    | Annotated[Status, subcommand("status")]
    | Annotated[DrawFigure, subcommand("figure")]
    | Annotated[Results, subcommand("results")]
    | Annotated[Claims, subcommand("claims")]
    | Annotated[Compare, subcommand("compare")]
    | Annotated[Score, subcommand("score")]
    | Annotated[Inspect, subcommand("inspect")]
    | Annotated[Verify, subcommand("verify")]
    | Annotated[Report, subcommand("report")]
    | Annotated[Theory, subcommand("theory")]
    | Annotated[ListTasks, subcommand("tasks")]
    | Annotated[ListParts, subcommand("parts")]
    | Annotated[Doctor, subcommand("doctor")]
)

COMMANDS: dict[str, type] = {get_args(command)[1].name: get_args(command)[0] for command in get_args(Command)}


def main(args: list[str] | None = None) -> None:
    """Run a command. Invalid input prints one line and exits with 2, a failure of the machine with 1."""
    _prepare_output()
    try:
        try:
            _command(args)
        finally:
            sys.stdout.flush()  # report a full disk or a closed pipe here, not when Python exits
    except UserError as error:
        _end(2, str(error))
    except Failed as error:
        _end(1, str(error))
    except MemoryError:
        _end(1, "out of memory")
    except BrokenPipeError:  # `resharpen results --csv | head`: the exit code of a process ended by SIGPIPE
        _end(141)
    except OSError as error:
        _end(1 if error.errno in MACHINE else 2, f"{error.filename or 'cannot write the output'}: {error.strerror}")


def _command(args: list[str] | None) -> None:
    words = sys.argv[1:] if args is None else args
    if not words or words[0] in ("-h", "--help"):
        print(overview(COMMANDS))
        return
    if words[0] == "--version":
        print(f"resharpen {metadata.version('resharpen')}")
        return
    command = parse(COMMANDS, words)
    check()
    from rich.console import Console

    # names and paths may look like markup, so styles are set with `style` or `Text` only
    console = Console(width=None if sys.stdout.isatty() else 120, markup=False, emoji=False)
    with warnings.catch_warnings(), fixed_here():
        warnings.showwarning = lambda message, *_, **__: print(f"resharpen: {message}", file=sys.stderr)
        command(console)


def _prepare_output() -> None:
    """Make stdout and stderr writable even if the caller closed them, and able to encode every name."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < 3:  # so that no file of a run becomes standard output
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    codecs.register_error("as-it-came", _as_it_came)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="as-it-came")  # pyright: ignore[reportAttributeAccessIssue]


def _as_it_came(error: UnicodeError) -> tuple[str | bytes, int]:
    """Write a path that is not UTF-8 as its bytes, and what the terminal cannot encode as an escape."""
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.lookup_error("backslashreplace")(error)


def _end(code: int, message: str = "") -> NoReturn:
    with contextlib.suppress(OSError, ValueError):
        if message:
            print(f"resharpen: {CONTROL.sub(lambda x: repr(x[0])[1:-1], message)}", file=sys.stderr)
        if message == "" or code == 1:  # discard buffered output, which cannot be written
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
