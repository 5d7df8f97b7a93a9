"""What the terminal shows of a run held against a reference."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from resharpen.analysis.verify import Check
from resharpen.experiments.keeping.reference import Reference

NAMED = 5
"""Differences of a kind that are shown one by one."""


def print_verification(checks: Sequence[Check], reference: Reference, console: Console) -> None:
    title = escape(f"Held against {reference.name}")
    table = Table("what", "compared", "result", title=title, title_justify="left")
    for check in checks:
        if check.differs:
            more = len(check.differs) - NAMED
            lines = [*check.differs[:NAMED], *([f"and {more} more"] if more > 0 else [])]
            table.add_row(check.what, f"{check.compared:,}", f"[red]differs[/]: {escape('; '.join(lines))}")
        else:
            table.add_row(
                check.what, f"{check.compared:,}", "[green]agrees[/]" if check.compared else "nothing to compare"
            )
    console.print(table)
