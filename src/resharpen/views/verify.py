"""What the terminal shows of a run compared with a reference."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from resharpen.analysis.verify import Check
from resharpen.experiments.keeping.reference import Reference

NAMED = 5
"""Differences of a kind that are shown one by one."""


def print_verification(checks: Sequence[Check], reference: Reference, console: Console) -> None:
    table = Table("what", "compared", "result", title=Text(f"Compared with {reference.name}"), title_justify="left")
    for check in checks:
        table.add_row(check.what, f"{check.compared:,}", _result(check))
    console.print(table)


def _result(check: Check) -> Text:
    if check.faulty:
        return Text("not compared", "yellow").append(_some(check.faulty), "default")
    if check.differs:
        return Text("differs", "red").append(_some(check.differs), "default")
    if check.unclear:
        return Text("too few models to tell", "yellow").append(_some(check.unclear), "default")
    return Text("agrees", "green") if check.compared else Text("nothing to compare", "dim")


def _some(named: Sequence[str]) -> str:
    more = len(named) - NAMED
    return f": {'; '.join([*named[:NAMED], *([f'and {more} more'] if more > 0 else [])])}"
