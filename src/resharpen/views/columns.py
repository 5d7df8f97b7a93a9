"""Terminal tables that fit the width: columns that identify a row never shrink, text wraps, others may be left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class Column:
    name: str
    right: bool = False
    wraps: int = 0
    """Minimum width of a column of text; 0: it never shrinks."""
    goes: int = 0
    """Columns above 0 are left out if a table does not fit, the highest first."""


def print_table(
    console: Console, columns: Sequence[Column], rows: Iterable[Sequence[str | Text]], title: str = ""
) -> None:
    """An empty row is a gap."""
    rows = list(rows)
    shown = list(columns)
    table = _table(shown, columns, rows)
    while any(column.goes for column in shown) and _least_width(table, console) > console.width:
        shown.remove(max(shown, key=lambda column: column.goes))
        table = _table(shown, columns, rows)
    if title:
        console.print(Text(title, "italic"), highlight=False)
    console.print(table, highlight=False)
    if gone := [column.name for column in columns if column not in shown]:
        console.print(Text(f"Left out at this width: {', '.join(gone)}.", "dim"))


def _least_width(table: Table, console: Console) -> int:
    return Measurement.get(console, console.options.update(max_width=10_000), table).minimum


def _table(shown: Sequence[Column], columns: Sequence[Column], rows: Sequence[Sequence[str | Text]]) -> Table:
    table = Table(box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    places = [i for i, column in enumerate(columns) if column in shown]
    for i in places:
        column = columns[i]
        widest = max([len(column.name), *(_width(row[i]) for row in rows if row)])
        table.add_column(
            column.name,
            justify="right" if column.right else "left",
            no_wrap=not column.wraps,
            min_width=min(widest, column.wraps) if column.wraps else widest,
            overflow="fold",
        )
    for row in rows:
        if row:
            table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in (row[i] for i in places)))
        else:
            table.add_section()
    return table


def _width(cell: str | Text) -> int:
    return max((Text(line).cell_len for line in str(cell).splitlines()), default=0)
