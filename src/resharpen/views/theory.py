"""The table of `resharpen theory`: each statement, how it was checked, what came out."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from resharpen.analysis.theory.checks import Check


def print_checks(checks: Sequence[Check], console: Console | None = None) -> None:
    table = Table(title="Theory of Set Complement under constant attention", title_justify="left", show_lines=True)
    for heading, ratio in (("statement", 4), ("checked by", 4), ("result", 3)):
        table.add_column(heading, ratio=ratio, overflow="fold")
    table.add_column("holds", justify="center")
    for check in checks:
        verdict = Text("yes", "green") if check.holds else Text("NO", "bold red")
        table.add_row(*(Text(text) for text in (check.statement, check.method, check.result)), verdict)
    (console or Console()).print(table)
